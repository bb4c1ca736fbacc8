#include "headrace/ops/reference/reference_ops.h"

namespace headrace::reference {

const OpSet& ops() {
  static constexpr OpSet kOps = {.name = "reference",
                                 .store_kv = store_kv,
                                 .paged_attention = paged_attention,
                                 .causal_conv1d = causal_conv1d,
                                 .gated_delta_rule = gated_delta_rule,
                                 .linear = linear,
                                 .rms_norm = rms_norm,
                                 .rotary_embedding = rotary_embedding,
                                 .pointwise = pointwise,
                                 .embedding = embedding,
                                 .token_confidence = token_confidence,
                                 .sample_tokens = sample_tokens,
                                 .penalize_tokens = penalize_tokens};
  return kOps;
}

}  // namespace headrace::reference
