// The CUDA kernels' host entry points: check, early return, launch on context.stream. Every tensor is in device memory
// and args.on_device holds the batch's arrays.
#pragma once
#include "headrace/ops/op_set.h"

namespace headrace::cuda {

void store_kv(const StoreKVArgs& args, const OpContext& context);
void paged_attention(const PagedAttentionArgs& args, const OpContext& context);
void causal_conv1d(const CausalConv1dArgs& args, const OpContext& context);
void gated_delta_rule(const GatedDeltaRuleArgs& args, const OpContext& context);
bool gdn_step(const GDNStepArgs& args, const OpContext& context);
bool attention_step(const AttentionStepArgs& args, const OpContext& context);
void linear(const LinearArgs& args, const OpContext& context);
// Rows of 16-bit floats of up to so many elements, in whole pieces, have the sums that a chain of products makes.
inline constexpr int64_t kLongestOrderedNorm = 16384;
void rms_norm(const RMSNormArgs& args, const OpContext& context);
void rotary_embedding(const RotaryEmbeddingArgs& args, const OpContext& context);
void pointwise(const PointwiseArgs& args, const OpContext& context);
void embedding(const EmbeddingArgs& args, const OpContext& context);
void token_confidence(const TokenConfidenceArgs& args, const OpContext& context);
void fused_linear(const FusedLinearArgs& args, const OpContext& context);
void norm_rotary(const NormRotaryArgs& args, const OpContext& context);
void expert_routing(const ExpertRoutingArgs& args, const OpContext& context);
void expert_mlp(const ExpertMLPArgs& args, const OpContext& context);
void merge_tokens(const MergeTokensArgs& args, const OpContext& context);
void penalize_tokens(const PenalizeTokensArgs& args, const OpContext& context);
void sample_tokens(const SampleTokensArgs& args, const OpContext& context);
void soft_embedding(const SoftEmbeddingArgs& args, const OpContext& context);

// One row of one head by one block, each sum in one order: what AttnImpl::kReference runs.
namespace reference {
void paged_attention(const PagedAttentionArgs& args, const OpContext& context);
}  // namespace reference

// The same with few rows in chains (gemm_sequence.h) whether that is faster or not: small sizes are what tests can
// judge.
namespace chained {
void linear(const LinearArgs& args, const OpContext& context);
void fused_linear(const FusedLinearArgs& args, const OpContext& context);
}  // namespace chained

}  // namespace headrace::cuda
