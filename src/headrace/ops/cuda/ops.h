// Host entry points of the CUDA kernels, one per op: check the arguments, return early on empty work, launch on
// context.stream. All tensors are in device memory, and args.on_device holds the batch's arrays.
#pragma once
#include "headrace/ops/op_set.h"

namespace headrace::cuda {

void store_kv(const StoreKVArgs& args, const OpContext& context);
void paged_attention(const PagedAttentionArgs& args, const OpContext& context);
std::vector<int32_t> kv_len_buckets(const PagedAttentionArgs& args, const OpContext& context);
void causal_conv1d(const CausalConv1dArgs& args, const OpContext& context);
void gated_delta_rule(const GatedDeltaRuleArgs& args, const OpContext& context);
bool gdn_step(const GDNStepArgs& args, const OpContext& context);
bool attention_step(const AttentionStepArgs& args, const OpContext& context);
void linear(const LinearArgs& args, const OpContext& context);
// Longest 16-bit row, a multiple of 8 elements, for which rms_norm adds in the order of the GEMM sequence kernel.
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

// Attention oracle: one CTA per query row and head, every sum in one fixed order. AttnImpl::kReference runs it.
namespace reference {
void paged_attention(const PagedAttentionArgs& args, const OpContext& context);
}  // namespace reference

// linear and fused_linear that always defer small M to the GEMM sequence (gemm_sequence.h), even where that is slower.
// Tests need it because they use small sizes.
namespace chained {
void linear(const LinearArgs& args, const OpContext& context);
void fused_linear(const FusedLinearArgs& args, const OpContext& context);
}  // namespace chained

}  // namespace headrace::cuda
