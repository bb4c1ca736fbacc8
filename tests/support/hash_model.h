// A causal model without weights: every logit depends on the row's token and position. A pass can be made to fail.
#pragma once
#include <optional>
#include <utility>

#include "headrace/core/error.h"
#include "headrace/models/model.h"

namespace headrace::testing_support {

class HashModel final : public Model {
 public:
  HashModel() {
    info_ = {.architecture = "hash",
             .vocab_size = 97,
             .context_length = 256,
             .num_layers = 1,
             .kv_groups = {{{1, 4, 4}, {0}}},
             .full_attn_layer_ids = {0},
             .dtype = DType::kF32};
  }
  const ModelInfo& info() const override { return info_; }
  Tensor forward(const ForwardBatch& batch) const override {
    if (auto error = std::exchange(next_error_, std::nullopt)) throw Error(*error);
    const auto rows = static_cast<int64_t>(batch.logits_rows.size());
    Tensor logits(DType::kF32, {rows, info_.vocab_size});
    const auto ids = batch.input_ids.as<const int32_t, 1>("ids"),
               positions = batch.positions.as<const int32_t, 1>("positions");
    for (int64_t r = 0; r < rows; ++r) {
      const int32_t row = batch.logits_rows[static_cast<size_t>(r)];
      auto hash = static_cast<uint32_t>(ids(row) * 4099 + positions(row));
      for (int64_t i = 0; i < info_.vocab_size; ++i) {
        hash = hash * 1664525u + 1013904223u;
        logits.data_as<float>()[r * info_.vocab_size + i] = static_cast<float>(hash >> 8) * 0x1p-21f;  // up to 8
      }
    }
    return logits;
  }
  void fail_next(Error error) { next_error_ = std::move(error); }  // the next pass throws

 private:
  ModelInfo info_;
  mutable std::optional<Error> next_error_;
};

}  // namespace headrace::testing_support
