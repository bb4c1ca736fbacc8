// Reference ops: every op in double, naive and complete. All other kernels are tested against these.
#pragma once
#include "headrace/ops/op_set.h"

namespace headrace::reference {

void store_kv(const StoreKVArgs& args, const OpContext& context);
void paged_attention(const PagedAttentionArgs& args, const OpContext& context);
// Computes row `row` of one request and head; leaves the rest of out and lse unchanged. `args` must have passed
// check().
void paged_attention_row(const PagedAttentionArgs& args, size_t request, int32_t row, int64_t head);
void causal_conv1d(const CausalConv1dArgs& args, const OpContext& context);
void gated_delta_rule(const GatedDeltaRuleArgs& args, const OpContext& context);
void linear(const LinearArgs& args, const OpContext& context);
void rms_norm(const RMSNormArgs& args, const OpContext& context);
void rotary_embedding(const RotaryEmbeddingArgs& args, const OpContext& context);
void pointwise(const PointwiseArgs& args, const OpContext& context);
void embedding(const EmbeddingArgs& args, const OpContext& context);
void token_confidence(const TokenConfidenceArgs& args, const OpContext& context);
void penalize_tokens(const PenalizeTokensArgs& args, const OpContext& context);
void sample_tokens(const SampleTokensArgs& args, const OpContext& context);

// Returns the table of the reference ops. Immutable; callable from any thread.
const OpSet& ops();

}  // namespace headrace::reference
