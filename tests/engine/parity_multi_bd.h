// multi_bd on the schedule of its source, with the source's idle passes: the specification's golden traces. A block
// that waits to be stored counts against the buffer, the pass over an aligned prompt decides nothing, and blocks after
// an end token are finished before any of their tokens is final. Source: Diffulex, strategy multi_bd.
#pragma once
#include "headrace/decoding/multi_bd.h"

namespace headrace::testing_support {

// Plans as MultiBD. Reads no parameter but the threshold.
class ParityMultiBD final : public DecodingStrategy {
 public:
  explicit ParityMultiBD(const StrategyConfig& config);
  void start(Sequence& sequence) const override;
  StepPlan plan(const Sequence& sequence, int32_t budget) const override { return tight_.plan(sequence, budget); }
  void commit(Sequence& sequence, const StepPlan& plan, std::span<const SampledToken> sampled) const override;

 private:
  bool may_open(const Sequence& sequence) const;
  void open(Sequence& sequence, int32_t begin) const;

  MultiBD tight_;
  DiffusionInfo info_;
  int32_t num_blocks_;
};

}  // namespace headrace::testing_support
