// What is done to rows of logits and ids around sampling, but for the repetition penalty.
#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "headrace/ops/reference/element.h"
#include "headrace/ops/reference/reference_ops.h"

namespace headrace::reference {

void bias_tokens(const BiasTokensArgs& a, const OpContext&) {
  check(a);
  for (int64_t i = 0; i < a.ids.numel(); ++i) {
    float* row = data<float>(a.logits) + data<const int32_t>(a.rows)[i] * a.logits.stride(0);
    row[data<const int32_t>(a.ids)[i]] += data<const float>(a.biases)[i];
  }
}

void mask_tokens(const MaskTokensArgs& a, const OpContext&) {
  check(a);
  for (int64_t i = 0; i < a.rows.numel(); ++i) {
    float* row = data<float>(a.logits) + data<const int32_t>(a.rows)[i] * a.logits.stride(0);
    const uint32_t* bits = data<const uint32_t>(a.bits) + i * a.bits.stride(0);
    for (int32_t id = 0; id < a.vocab; ++id) {
      if ((bits[id / 32] >> id % 32 & 1) == 0) row[id] = -std::numeric_limits<float>::infinity();
    }
  }
}

// NaN counts as the least, so that the order is one.
void top_tokens(const TopTokensArgs& a, const OpContext&) {
  check(a);
  const int64_t count = a.ids.dim(1);
  std::vector<int32_t> order(static_cast<size_t>(a.vocab));
  for (int64_t i = 0; i < a.rows.numel(); ++i) {
    const float* row = data<const float>(a.logits) + data<const int32_t>(a.rows)[i] * a.logits.stride(0);
    order.resize(static_cast<size_t>(a.vocab));
    std::iota(order.begin(), order.end(), 0);
    if (a.excluded_id) std::erase(order, *a.excluded_id);
    const auto kept = std::min(order.size(), static_cast<size_t>(count));
    const auto value = [row](int32_t id) {
      return row[id] == row[id] ? row[id] : -std::numeric_limits<float>::infinity();
    };
    const auto before = [&](int32_t x, int32_t y) { return value(x) != value(y) ? value(x) > value(y) : x < y; };
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept), order.end(), before);
    for (size_t n = 0; n < static_cast<size_t>(count); ++n) {
      const bool has = n < kept;
      data<int32_t>(a.ids)[i * count + static_cast<int64_t>(n)] = has ? order[n] : -1;
      data<float>(a.top)[i * count + static_cast<int64_t>(n)] =
          has ? row[order[n]] : -std::numeric_limits<float>::infinity();
    }
  }
}

void take_tokens(const TakeTokensArgs& a, const OpContext&) {
  check(a);
  for (int64_t i = 0; i < a.ids.numel(); ++i) {
    const int32_t from = data<const int32_t>(a.from)[i];
    if (from >= 0) data<int32_t>(a.ids)[i] = data<const int32_t>(a.tokens)[from];
  }
}

}  // namespace headrace::reference
