// Table of the ops of one implementation: reference/, one ISA variant of cpu/, or the CUDA module.
#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "headrace/ops/attention_step.h"
#include "headrace/ops/bias_tokens.h"
#include "headrace/ops/causal_conv1d.h"
#include "headrace/ops/embedding.h"
#include "headrace/ops/expert_mlp.h"
#include "headrace/ops/expert_routing.h"
#include "headrace/ops/fused_linear.h"
#include "headrace/ops/gated_delta_rule.h"
#include "headrace/ops/gdn_step.h"
#include "headrace/ops/linear.h"
#include "headrace/ops/mask_tokens.h"
#include "headrace/ops/merge_tokens.h"
#include "headrace/ops/norm_rotary.h"
#include "headrace/ops/paged_attention.h"
#include "headrace/ops/penalize_tokens.h"
#include "headrace/ops/pointwise.h"
#include "headrace/ops/rms_norm.h"
#include "headrace/ops/rotary_embedding.h"
#include "headrace/ops/sample_tokens.h"
#include "headrace/ops/soft_embedding.h"
#include "headrace/ops/store_kv.h"
#include "headrace/ops/take_tokens.h"
#include "headrace/ops/token_confidence.h"
#include "headrace/ops/top_tokens.h"

// The ops, one a line: name and parameter. From this list are made OpSet, the declarations and the tables of the
// reference and of the CUDA module.
//   OP      every table has a kernel
//   FUSED   several ops in one kernel. Returns false, and does nothing, if these sizes, dtypes or this determinism are
//           unsupported, always so in a table that gains nothing from fusing. The caller then runs the separate ops
//   DEVICE  only tables of a device have a kernel: on a CPU layers implement these themselves. gemm_sequence runs
//           fused_linear calls in order; each may read what the ones before it wrote
// clang-format off
#define HR_OPS(OP, FUSED, DEVICE)                         \
  OP(store_kv, const StoreKVArgs&)                        \
  OP(paged_attention, const PagedAttentionArgs&)          \
  OP(causal_conv1d, const CausalConv1dArgs&)              \
  OP(gated_delta_rule, const GatedDeltaRuleArgs&)         \
  OP(linear, const LinearArgs&)                           \
  OP(rms_norm, const RMSNormArgs&)                        \
  OP(rotary_embedding, const RotaryEmbeddingArgs&)        \
  OP(pointwise, const PointwiseArgs&)                     \
  OP(embedding, const EmbeddingArgs&)                     \
  OP(token_confidence, const TokenConfidenceArgs&)        \
  OP(sample_tokens, const SampleTokensArgs&)              \
  OP(penalize_tokens, const PenalizeTokensArgs&)          \
  OP(bias_tokens, const BiasTokensArgs&)                  \
  OP(mask_tokens, const MaskTokensArgs&)                  \
  OP(top_tokens, const TopTokensArgs&)                    \
  OP(take_tokens, const TakeTokensArgs&)                  \
  FUSED(gdn_step, const GDNStepArgs&)                     \
  FUSED(attention_step, const AttentionStepArgs&)         \
  FUSED(fused_linear, const FusedLinearArgs&)             \
  FUSED(norm_rotary, const NormRotaryArgs&)               \
  DEVICE(expert_routing, const ExpertRoutingArgs&)        \
  DEVICE(expert_mlp, const ExpertMLPArgs&)                \
  DEVICE(merge_tokens, const MergeTokensArgs&)            \
  DEVICE(soft_embedding, const SoftEmbeddingArgs&)        \
  DEVICE(gemm_sequence, std::span<const FusedLinearArgs>)
// clang-format on

namespace headrace {

// Error kUnsupported: the table has no kernel of this op.
[[noreturn]] void refuse_op(std::string_view op);
// Entry of a fused op in a table without it.
template <class Args>
bool not_fused(Args, const OpContext&) {
  return false;
}

// Every function checks its Args first (throws Error kInvalidArgument), returns early on empty work and writes its
// outputs completely. No entry is null: one without a kernel refuses. The table is immutable; its functions are
// callable from any thread.
struct OpSet {
  std::string_view name;  // shown in run reports: "reference", "portable", "avx2", "avx512", "avx512bf16", "amx"
  // NOLINTBEGIN(bugprone-macro-parentheses): names of members and parameters
#define HR_OP(op, Args) void (*op)(Args, const OpContext&) = [](Args, const OpContext&) { refuse_op(#op); };
#define HR_FUSED_OP(op, Args) bool (*op)(Args, const OpContext&) = not_fused<Args>;
  // NOLINTEND(bugprone-macro-parentheses)
  HR_OPS(HR_OP, HR_FUSED_OP, HR_OP)
#undef HR_OP
#undef HR_FUSED_OP
  // Returns, ascending, the KV lengths below those of the batch for which paged_attention would run another kernel, so
  // that a graph of its own is worth capturing. None where one kernel serves every length.
  std::vector<int32_t> (*kv_len_buckets)(const PagedAttentionArgs&, const OpContext&) =
      [](const PagedAttentionArgs&, const OpContext&) { return std::vector<int32_t>(); };
  int32_t most_sequence_rows = 0;  // largest M for which gemm_sequence may be faster than its calls one by one; 0: none
  int32_t library_rows = 16;       // smallest M at which a CPU's matrix library beats `linear` in default mode
  int32_t most_head_dim = 0;       // largest head size of keys and values in paged_attention; 0: any
  int32_t most_gdn_key_dim = 0;    // largest head_k_dim of gated_delta_rule; 0: any
  int32_t most_conv_width = 0;     // most taps of causal_conv1d; 0: any
  int32_t most_experts = 0;        // most experts of expert_routing; 0: any
  int32_t most_vocab = 0;          // largest vocabulary of sample_tokens; 0: any
};

}  // namespace headrace
