#include <cmath>
#include <limits>

#include "headrace/ops/reference/reference_ops.h"

namespace headrace::reference {

void token_confidence(const TokenConfidenceArgs& a, const OpContext&) {
  check(a);
  const auto logits = a.logits.as<const float, 2>("logits");
  const auto best = a.best.as<int32_t, 1>("best");
  const auto stats = a.stats.as<float, 2>("stats");
  for (int64_t r = 0; r < logits.dim(0); ++r) {
    int32_t first = -1;
    double second = -std::numeric_limits<double>::infinity(), sum = 0, weighted = 0;
    const auto counts = [&a](int32_t i) { return !a.excluded_id || i != *a.excluded_id; };
    for (int32_t i = 0; i < a.vocab; ++i) {
      if (counts(i) && (first < 0 || logits(r, i) > logits(r, first))) first = i;
    }
    const auto largest = static_cast<double>(logits(r, first));
    for (int32_t i = 0; i < logits.dim(1); ++i) {
      if (!counts(i)) continue;
      const double shifted = static_cast<double>(logits(r, i)) - largest, weight = std::exp(shifted);
      sum += weight;
      weighted += weight == 0 ? 0 : weight * shifted;
      if (i < a.vocab && i != first && static_cast<double>(logits(r, i)) > second)
        second = static_cast<double>(logits(r, i));
    }
    best(r) = first;
    stats(r, 0) = logits(r, first);
    stats(r, 1) = static_cast<float>(std::log(sum));
    stats(r, 2) = static_cast<float>(second);
    stats(r, 3) = static_cast<float>(std::log(sum) - weighted / sum);
  }
}

}  // namespace headrace::reference
