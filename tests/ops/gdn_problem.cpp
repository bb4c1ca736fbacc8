#include "ops/gdn_problem.h"

#include <algorithm>
#include <cmath>

namespace headrace::testing_support {

GDNProblem::GDNProblem(const GDNCase& c) : case_(c) {
  Random random(c.seed);
  int32_t tokens = 0;
  for (const int32_t len : c.lens) {
    spans_.push_back({.q_off = tokens, .q_len = len});
    const auto r = static_cast<int32_t>(slots.size());
    slots.push_back({.read = 1 + 2 * r, .write = 2 + 2 * r});
    tokens += len;
  }
  const int32_t heads = c.k_heads * c.group, key_channels = c.k_heads * c.dk;
  qkv_ = random_tensor(random, c.in, {tokens, 2 * key_channels + heads * c.dv});
  const Tensor base = random_tensor(random, DType::kF32, {key_channels});
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t i = 0; i < key_channels; ++i) {
      const int64_t at = t * qkv_.dim(1) + key_channels + i;
      set_element(qkv_, at, element_as_double(base, i) + c.key_spread * element_as_double(qkv_, at));
    }
  }
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t i = 0; i < 2 * key_channels; ++i) {
      const int64_t at = t * qkv_.dim(1) + i;
      set_element(qkv_, at, c.key_scale * element_as_double(qkv_, at));
    }
  }
  a_ = random_tensor(random, c.in, {tokens, heads}, 0.5);
  b_ = random_tensor(random, c.in, {tokens, heads});
  a_log_ = random_tensor(random, DType::kF32, {heads}, 0.1);
  for (int64_t h = 0; h < heads; ++h) set_element(a_log_, h, element_as_double(a_log_, h) + std::log(-c.mean_g / 0.72));
  dt_bias_ = random_tensor(random, DType::kF32, {heads}, 0.1);
  initial_ = random_tensor(random, DType::kF32, {first_spare() + kSpareSlots, heads, c.dv, c.dk}, 0.3);
  poison(initial_.view().select(0));
  for (size_t r = 0; r < slots.size(); ++r) poison(initial_.view().select(slots[r].write));
  poison(initial_.view().slice(first_spare(), initial_.dim(0)));
  out_ = Tensor(c.out, {tokens, heads, c.dv});
}

TensorView GDNProblem::rows(int64_t request) const {
  const KeySpan& span = spans_[static_cast<size_t>(request)];
  return out_.view().slice(span.q_off, span.q_off + span.q_len);
}

Tensor GDNProblem::first_token_from_zeros() const {
  double qq = 0, kk = 0, kq = 0;
  for (int64_t i = 0; i < case_.dk; ++i) {
    const double q = element_as_double(qkv_, i), k = element_as_double(qkv_, case_.dk + i);
    qq += q * q, kk += k * k, kq += k * q;
  }
  const double beta = 1 / (1 + std::exp(-element_as_double(b_, 0)));
  const double factor = beta * kq / std::sqrt((qq + 1e-6) * (kk + 1e-6) * case_.dk);
  Tensor out(DType::kF32, {1, 1, case_.dv});
  for (int64_t i = 0; i < case_.dv; ++i) set_element(out, i, factor * element_as_double(qkv_, 2 * case_.dk + i));
  return out;
}

void GDNProblem::reset() {
  state_ = copy_of(initial_);
  poison(out_);
}

GatedDeltaRuleArgs GDNProblem::args() const {
  return {.qkv = qkv_,
          .a = a_,
          .b = b_,
          .a_log = a_log_,
          .dt_bias = dt_bias_,
          .state = state_,
          .num_k_heads = case_.k_heads,
          .spans = spans_,
          .slots = slots,
          .snapshots = snapshots,
          .out = out_};
}

void GDNProblem::run(const OpSet& ops, const OpContext& context) {
  reset();
  ops.gated_delta_rule(args(), context);
}

void GDNProblem::run_split(const OpSet& ops, const std::vector<int32_t>& sizes, const OpContext& context) {
  reset();
  for (size_t r = 0; r < spans_.size(); ++r) {
    size_t call = 0;
    for (int32_t done = 0; done < spans_[r].q_len; ++call) {
      const int32_t len = std::min(sizes[std::min(call, sizes.size() - 1)], spans_[r].q_len - done);
      const std::vector<KeySpan> span = {{.q_off = spans_[r].q_off + done, .q_len = len}};
      const std::vector<StateSlots> slot = {
          {.read = done == 0 ? slots[r].read : slots[r].write, .write = slots[r].write}};
      GatedDeltaRuleArgs part = args();
      part.spans = span;
      part.slots = slot;
      part.snapshots = {};
      ops.gated_delta_rule(part, context);
      done += len;
    }
  }
}

}  // namespace headrace::testing_support
