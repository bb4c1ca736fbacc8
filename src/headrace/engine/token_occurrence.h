// Which tokens the texts of requests with a repetition penalty have, as bits where the model runs: a step brings there
// what has changed since the last one alone.
#pragma once
#include <optional>
#include <span>
#include <vector>

#include "headrace/ops/op_set.h"

namespace headrace {

// Rows of logits of one request, [first, first + count).
struct PenalizedRows {
  int64_t text = 0;                 // names the request's text from step to step
  std::span<const int32_t> tokens;  // that it has so far
  int32_t num_final = 0;            // leading ones that will not change
  float penalty = 1;
  int64_t first = 0, count = 0;
};

// Not thread-safe.
class TokenOccurrence {
 public:
  // None is owned; all outlive the object. Ids from `vocab` on are never penalised.
  TokenOccurrence(const OpSet& ops, const OpContext& context, DeviceRuntime& runtime, int32_t vocab)
      : ops_(ops), context_(context), runtime_(runtime), vocab_(vocab) {}

  // `logits` float32 [rows, at least vocab], where the model runs. `open_id`: what tokens that are undecided hold.
  // `last_ids`: int32 [rows] there: stand for the last token of each text, which the host does not know yet; null: it
  // does. Error kOutOfMemory.
  void penalize(const TensorView& logits, std::span<const PenalizedRows> rows, std::optional<int32_t> open_id,
                const TensorView& last_ids);

 private:
  // What the bits of a text stand for: its first `final` tokens, and `rest` behind them.
  struct Text {
    std::optional<int64_t> name;
    int32_t num_final = 0;
    std::vector<int32_t> rest;
    int64_t last_call = 0;

    bool has(int32_t at) const { return at < num_final + static_cast<int32_t>(rest.size()); }
  };
  // Tokens that are new, and in which text.
  struct Added {
    std::vector<int32_t> ids, texts;
  };
  // Finds a place for each.
  void make_room(std::span<const PenalizedRows> rows);
  int32_t index_of(int64_t name) const;
  void forget(int32_t index);
  void bring_up_to_date(int32_t index, const PenalizedRows& rows, std::optional<int32_t> open_id,
                        std::span<const int32_t> known, Added& added);

  const OpSet& ops_;
  OpContext context_;
  DeviceRuntime& runtime_;
  int32_t vocab_;
  std::vector<Text> texts_;
  Tensor seen_;  // as PenalizeTokensArgs has it, a row for each of texts_
  int64_t calls_ = 0;
};

}  // namespace headrace
