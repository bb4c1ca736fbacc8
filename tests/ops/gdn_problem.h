// A gated_delta_rule call with random inputs: what the tests vary, and the memory that the Args refer to.
#pragma once
#include <optional>
#include <vector>

#include "headrace/ops/gated_delta_rule.h"
#include "headrace/ops/op_set.h"
#include "support/random.h"

namespace headrace::testing_support {

struct GDNCase {
  int32_t k_heads = 2, group = 2;  // value heads = k_heads * group
  int32_t dk = 24, dv = 20;
  std::vector<int32_t> lens = {70};  // tokens of each request
  double mean_g = -0.1;              // log decay per token
  double key_spread = 0.2;           // keys are one vector plus this much noise: small is correlated
  double key_scale = 1;              // of keys and queries
  DType in = DType::kF32, out = DType::kF32;
  uint64_t seed = 1;
};

// Request r reads slot 1 + 2 r and writes the next; slot 0 and the slots after the requests' are NaN.
class GDNProblem {
 public:
  explicit GDNProblem(const GDNCase& c);

  // Runs `ops` on copies of the state; afterwards out() and state() hold the result.
  void run(const OpSet& ops, const OpContext& context = {});
  // The same tokens, each request cut into calls of `sizes` tokens (the last repeats), each from the state of the
  // one before.
  void run_split(const OpSet& ops, const std::vector<int32_t>& sizes, const OpContext& context = {});

  const Tensor& out() const { return out_; }
  const Tensor& state() const { return state_; }
  TensorView slot(int64_t i) const { return state_.view().select(i); }
  TensorView rows(int64_t request) const;  // of out()
  // The first token's output from a zero state, by hand: beta (kn . qn) v. One head of each kind.
  Tensor first_token_from_zeros() const;

  std::vector<StateSlots> slots;
  std::vector<StateSnapshot> snapshots;

  static constexpr int32_t kSpareSlots = 4;  // NaN, for snapshots
  int32_t first_spare() const { return 1 + 2 * static_cast<int32_t>(spans_.size()); }

 private:
  GatedDeltaRuleArgs args() const;
  void reset();

  GDNCase case_;
  std::vector<KeySpan> spans_;
  Tensor qkv_, a_, b_, a_log_, dt_bias_, initial_, state_, out_;
};

}  // namespace headrace::testing_support
