// How a sequence is decoded: what runs in a step, and what the samples change.
#pragma once
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "headrace/request/sequence.h"
#include "headrace/sampling/sampler.h"

namespace headrace {

// Positions [begin, end) of a sequence.
struct TokenRange {
  int32_t begin = 0, end = 0;
  int32_t size() const { return end - begin; }
};

// One sequence's share of a step. Strategies fill it; kernels never learn which one did.
struct StepPlan {
  TokenRange tokens;                             // run
  KeySpan::Kind kind = KeySpan::Kind::kCausal;   // who sees whom among them
  int32_t block_size = 1;
  TokenRange store;                              // of these, K and V are kept
  TokenRange sample;                             // logits of these are wanted
};

// Stateless: all state is the sequence's. Callable from any thread.
class DecodingStrategy {
 public:
  virtual ~DecodingStrategy() = default;
  virtual std::string_view name() const = 0;
  // The next step, with at most `budget` (>= 1) tokens.
  virtual StepPlan plan(const Sequence& sequence, int32_t budget) const = 0;
  // What a step that ran changes; one sample for each position of plan.sample.
  virtual void commit(Sequence& sequence, const StepPlan& plan, std::span<const SampledToken> sampled) const = 0;
};

std::vector<std::string_view> strategy_names();
// Error kUnsupported for a name that is not built; the text lists those that are.
std::unique_ptr<DecodingStrategy> make_strategy(std::string_view name);

}  // namespace headrace
