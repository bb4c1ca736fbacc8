// A model of whose logits a test makes one row useless, that of a request it chooses.
#pragma once
#include <limits>
#include <optional>

#include "headrace/core/device_runtime.h"
#include "headrace/models/model.h"

namespace headrace::testing_support {

// A row of logits of one request.
struct PoisonedRow {
  int32_t table_row = 0;  // of the request (Sequence::table_row)
  int32_t index = 0;      // among the request's rows of logits in the pass; the last one if it has fewer
  float logit = std::numeric_limits<float>::quiet_NaN();
};

// Runs `model` on `runtime`, without graphs; both are not owned.
class PoisonedModel final : public Model {
 public:
  explicit PoisonedModel(const Model& model, DeviceRuntime& runtime = cpu_runtime())
      : model_(model), runtime_(runtime) {}
  const ModelInfo& info() const override { return model_.info(); }
  Tensor forward(const ForwardBatch& batch) const override {
    Tensor logits = model_.forward(batch);
    if (const auto row = next_ ? row_of(batch, *next_) : std::nullopt) {
      auto* to = static_cast<float*>(logits.view().select(*row).data()) + 3;
      runtime_.copy_to_device(to, &next_->logit, sizeof(float));
      next_.reset();
    }
    return logits;
  }
  // The next pass with logits of this request returns one that is no number.
  void poison(const PoisonedRow& row) { next_ = row; }
  bool done() const { return !next_; }

 private:
  static std::optional<int64_t> row_of(const ForwardBatch& batch, const PoisonedRow& wanted) {
    std::optional<int64_t> found;
    int32_t index = 0;
    for (size_t r = 0; r < batch.logits_rows.size(); ++r) {
      for (const KeySpan& span : batch.attn.spans) {
        const bool holds = batch.logits_rows[r] >= span.q_off && batch.logits_rows[r] < span.q_off + span.q_len;
        if (!holds || span.page_row != wanted.table_row || index > wanted.index) continue;
        found = static_cast<int64_t>(r), ++index;
      }
    }
    return found;
  }

  const Model& model_;
  DeviceRuntime& runtime_;
  mutable std::optional<PoisonedRow> next_;
};

}  // namespace headrace::testing_support
