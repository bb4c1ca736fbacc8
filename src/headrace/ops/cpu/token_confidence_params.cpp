#include "headrace/ops/cpu/token_confidence.h"

namespace headrace::cpu {

TokenConfidenceParams params_of(const TokenConfidenceArgs& a, const OpContext& context) {
  return {.logits = static_cast<const float*>(a.logits.data()),
          .rows = a.logits.dim(0),
          .row_stride = a.logits.stride(0),
          .vocab = a.vocab,
          .width = a.logits.dim(1),
          .excluded = a.excluded_id ? *a.excluded_id : -1,
          .best = static_cast<int*>(a.best.data()),
          .stats = static_cast<float*>(a.stats.data()),
          .best_stride = a.best.stride(0),
          .stats_stride = a.stats.stride(0),
          .threads = context.threads};
}

}  // namespace headrace::cpu
