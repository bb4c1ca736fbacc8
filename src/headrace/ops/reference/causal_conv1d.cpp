// Reference of causal_conv1d: one channel at a time, sums in double.
#include <cmath>
#include <vector>

#include "headrace/ops/reference/element.h"
#include "headrace/ops/reference/reference_ops.h"

namespace headrace::reference {
namespace {

void convolve_channel(const CausalConv1dArgs& a, size_t request, int64_t c) {
  const KeySpan& span = a.spans[request];
  const StateSlots& slots = a.slots[request];
  const int64_t kernel = a.weight.dim(1), history = kernel - 1;
  std::vector<double> x;  // the state's inputs, then the request's
  for (int64_t j = 0; j < history; ++j) x.push_back(slots.read == kNoState ? 0.0 : get(a.state, slots.read, c, j));
  for (int64_t t = 0; t < span.q_len; ++t) x.push_back(get(a.x, span.q_off + t, c));
  for (int64_t t = 0; t < span.q_len; ++t) {
    double y = 0;
    for (int64_t j = 0; j < kernel; ++j) y += get(a.weight, c, j) * x[static_cast<size_t>(t + j)];
    set(a.out, y / (1 + std::exp(-y)), span.q_off + t, c);
  }
  const auto save = [&](int32_t slot, int64_t tokens) {
    for (int64_t j = 0; j < history; ++j) set(a.state, x[static_cast<size_t>(tokens + j)], slot, c, j);
  };
  for (const StateSnapshot& s : a.snapshots) {
    if (static_cast<size_t>(s.request) == request) save(s.slot, s.num_tokens);
  }
  if (slots.write != kNoState) save(slots.write, span.q_len);
}

}  // namespace

void causal_conv1d(const CausalConv1dArgs& a, const OpContext&) {
  check(a);
  for (size_t r = 0; r < a.spans.size(); ++r) {
    if (a.spans[r].q_len == 0) continue;
    for (int64_t c = 0; c < a.x.dim(1); ++c) convolve_channel(a, r, c);
  }
}

}  // namespace headrace::reference
