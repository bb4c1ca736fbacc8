// Token-occurrence bitmaps on the device, for repetition penalties. Each step uploads only the changes since the last
// one.
#pragma once
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "headrace/ops/op_set.h"

namespace headrace {

// Rows of logits of one request, [first, first + count).
struct PenalizedRows {
  int64_t text = 0;                 // identifies the request from step to step
  std::span<const int32_t> tokens;  // tokens so far
  int32_t num_final = 0;            // leading tokens that will not change
  float penalty = 1;
  int64_t first = 0, count = 0;
};

// Not thread-safe.
class TokenOccurrence {
 public:
  // Owns none of its arguments; all outlive the object. Ids from `vocab` on are never penalised.
  TokenOccurrence(const OpSet& ops, const OpContext& context, DeviceRuntime& runtime, int32_t vocab)
      : ops_(ops), context_(context), runtime_(runtime), vocab_(vocab) {}

  // Applies the penalties in place to `logits`, float32 [rows, at least vocab], where the model runs. `open_id`: the id
  // held by undecided positions.
  // Error kOutOfMemory.
  void penalize(const TensorView& logits, std::span<const PenalizedRows> rows, std::optional<int32_t> open_id);

 private:
  // The tokens that a bitmap covers: the first num_final tokens of the text, then `rest`.
  struct Text {
    std::optional<int64_t> name;
    int32_t num_final = 0;
    std::vector<int32_t> rest;
    int64_t last_call = 0;

    bool has(int32_t at) const { return at < num_final + static_cast<int32_t>(rest.size()); }
  };
  // New tokens, and the indices of their texts.
  struct Added {
    std::vector<int32_t> ids, texts;
  };
  // Assigns a bitmap to each text.
  void make_room(std::span<const PenalizedRows> rows);
  void forget(int32_t index);
  void bring_up_to_date(int32_t index, const PenalizedRows& rows, std::optional<int32_t> open_id, Added& added);

  const OpSet& ops_;
  OpContext context_;
  DeviceRuntime& runtime_;
  int32_t vocab_;
  std::vector<Text> texts_;
  std::unordered_map<int64_t, int32_t> indices_;  // into texts_, by the text's name
  Tensor seen_;                                   // bitmaps (PenalizeTokensArgs), one row per entry of texts_
  int64_t calls_ = 0;
};

}  // namespace headrace
