// Changes rows of logits where the model runs, by the same ops on a CPU and on a device.
#pragma once
#include <optional>

#include "headrace/ops/op_set.h"
#include "headrace/sampling/logit_changes.h"

namespace headrace {

// Not thread-safe.
class LogitsProcessor {
 public:
  // Owns none of its arguments; all outlive the object. Tokens are the ids below `vocab`.
  LogitsProcessor(const OpSet& ops, const OpContext& context, DeviceRuntime& runtime, int32_t vocab)
      : ops_(ops), context_(context), runtime_(runtime), vocab_(vocab), seen_(ops, context, runtime, vocab) {}

  // Applies `changes`, which go to the device in one copy, in place to `logits`, dense float32 [rows, the
  // listed width]. In this order: divides by the temperatures; adds before_penalty(); applies the repetition penalty;
  // adds behind_penalty(); masks. `open_id`: the id that undecided positions of texts hold.
  // Before that it writes the logits of tokens with additions to `model_logits`, float32 [changes.num_additions()]: the
  // inverse of an addition would have few of a logit's bits left. Error kOutOfMemory.
  void apply(LogitChanges& changes, const TensorView& logits, std::optional<int32_t> open_id,
             const TensorView& model_logits);

 private:
  using Additions = LogitChanges::Additions;
  // Calls `run` for each part of `logits` with additions: run(first row, end row, first addition, end addition).
  template <class Run>
  void for_each_part(const Additions& additions, const Run& run) const;
  TensorView there(LogitChanges::Words words, DType dtype) const;
  void read(const Additions& additions, const TensorView& logits, const TensorView& out) const;
  void add(const Additions& additions, const TensorView& logits);

  const OpSet& ops_;
  OpContext context_;
  DeviceRuntime& runtime_;
  int32_t vocab_;
  TokenOccurrence seen_;
  Tensor words_;  // those of the changes, where the model runs
  Tensor zeros_;  // int32 [additions of the largest call]
  int64_t rows_of_part_ = 1;
};

}  // namespace headrace
