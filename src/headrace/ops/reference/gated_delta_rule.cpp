// Reference of gated_delta_rule: the recurrence token by token, in double.
#include <cmath>
#include <vector>

#include "headrace/ops/reference/element.h"
#include "headrace/ops/reference/reference_ops.h"

namespace headrace::reference {
namespace {

using Vector = std::vector<double>;

double dot(const double* x, const double* y, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i] * y[i];
  return sum;
}

Vector normalised(Vector x, double scale) {
  const double factor = scale / std::sqrt(dot(x.data(), x.data(), static_cast<int64_t>(x.size())) + 1e-6);
  for (double& value : x) value *= factor;
  return x;
}

// Recurrence of one request and one value head.
class Head {
 public:
  Head(const GatedDeltaRuleArgs& args, int64_t head)
      : a_(args),
        head_(head),
        key_head_(head / (args.num_v_heads() / args.num_k_heads)),
        state_(static_cast<size_t>(args.head_v_dim() * args.head_k_dim())) {}

  void load(int32_t slot) {
    exchange([&](int64_t v, int64_t k, double& s) { s = get(a_.state, slot, head_, v, k); });
  }
  void save(int32_t slot) {
    exchange([&](int64_t v, int64_t k, double& s) { set(a_.state, s, slot, head_, v, k); });
  }

  void step(int64_t token) {
    const int64_t dk = a_.head_k_dim(), dv = a_.head_v_dim();
    const Vector q = normalised(read(token, key_head_ * dk, dk), 1 / std::sqrt(static_cast<double>(dk)));
    const Vector k = normalised(read(token, (a_.num_k_heads + key_head_) * dk, dk), 1);
    const Vector v = read(token, int64_t{2} * a_.num_k_heads * dk + head_ * dv, dv);
    const double u = get(a_.a, token, head_) + get(a_.dt_bias, head_);
    const double decay = std::exp(-std::exp(get(a_.a_log, head_)) * (u > 20 ? u : std::log1p(std::exp(u))));
    const double beta = 1 / (1 + std::exp(-get(a_.b, token, head_)));
    for (int64_t i = 0; i < dv; ++i) {
      double* row = state_.data() + i * dk;
      for (int64_t j = 0; j < dk; ++j) row[j] *= decay;
      const double d = beta * (v[static_cast<size_t>(i)] - dot(row, k.data(), dk));
      for (int64_t j = 0; j < dk; ++j) row[j] += d * k[static_cast<size_t>(j)];
      set(a_.out, dot(row, q.data(), dk), token, head_, i);
    }
  }

 private:
  template <class F>
  void exchange(F&& element) {
    for (int64_t v = 0; v < a_.head_v_dim(); ++v) {
      for (int64_t k = 0; k < a_.head_k_dim(); ++k) element(v, k, state_[static_cast<size_t>(v * a_.head_k_dim() + k)]);
    }
  }
  Vector read(int64_t token, int64_t from, int64_t count) const {
    Vector x;
    for (int64_t i = 0; i < count; ++i) x.push_back(get(a_.qkv, token, from + i));
    return x;
  }

  const GatedDeltaRuleArgs& a_;
  int64_t head_, key_head_;
  Vector state_;  // [head_v_dim, head_k_dim]
};

}  // namespace

void gated_delta_rule(const GatedDeltaRuleArgs& a, const OpContext&) {
  check(a);
  for (size_t r = 0; r < a.spans.size(); ++r) {
    const KeySpan& span = a.spans[r];
    if (span.q_len == 0) continue;
    for (int64_t h = 0; h < a.num_v_heads(); ++h) {
      Head head(a, h);
      if (a.slots[r].read != kNoState) head.load(a.slots[r].read);
      for (int32_t t = 0; t < span.q_len; ++t) {
        head.step(span.q_off + t);
        for (const StateSnapshot& s : a.snapshots) {
          if (static_cast<size_t>(s.request) == r && s.num_tokens == t + 1) head.save(s.slot);
        }
      }
      if (a.slots[r].write != kNoState) head.save(a.slots[r].write);
    }
  }
}

}  // namespace headrace::reference
