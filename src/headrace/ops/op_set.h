// Table of the ops of one implementation: reference/, one ISA variant of cpu/, or the CUDA module.
#pragma once
#include <string_view>
#include <vector>

#include "headrace/ops/attention_step.h"
#include "headrace/ops/causal_conv1d.h"
#include "headrace/ops/denoise_step.h"
#include "headrace/ops/embedding.h"
#include "headrace/ops/expert_mlp.h"
#include "headrace/ops/expert_routing.h"
#include "headrace/ops/fused_linear.h"
#include "headrace/ops/gated_delta_rule.h"
#include "headrace/ops/gdn_step.h"
#include "headrace/ops/linear.h"
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
#include "headrace/ops/token_confidence.h"

namespace headrace {

// Every function checks its Args first (throws Error kInvalidArgument), returns early on empty work and writes its
// outputs completely. The table is immutable; its functions are callable from any thread.
struct OpSet {
  std::string_view name;  // shown in run reports: "reference", "portable", "avx2", "avx512", "avx512bf16", "amx"
  void (*store_kv)(const StoreKVArgs&, const OpContext&);
  void (*paged_attention)(const PagedAttentionArgs&, const OpContext&);
  void (*causal_conv1d)(const CausalConv1dArgs&, const OpContext&);
  void (*gated_delta_rule)(const GatedDeltaRuleArgs&, const OpContext&);
  void (*linear)(const LinearArgs&, const OpContext&);
  void (*rms_norm)(const RMSNormArgs&, const OpContext&);
  void (*rotary_embedding)(const RotaryEmbeddingArgs&, const OpContext&);
  void (*pointwise)(const PointwiseArgs&, const OpContext&);
  void (*embedding)(const EmbeddingArgs&, const OpContext&);
  void (*token_confidence)(const TokenConfidenceArgs&, const OpContext&);
  void (*sample_tokens)(const SampleTokensArgs&, const OpContext&);
  void (*penalize_tokens)(const PenalizeTokensArgs&, const OpContext&);
  // Optional fused ops; null if not built. They return false, and do nothing, if these sizes, dtypes or this
  // determinism are unsupported. The caller then runs the separate ops.
  bool (*gdn_step)(const GDNStepArgs&, const OpContext&) = nullptr;
  bool (*attention_step)(const AttentionStepArgs&, const OpContext&) = nullptr;
  // Returns, ascending, the KV lengths below those of `args` up to which paged_attention would run another kernel that
  // is worth a CUDA graph of its own. Reads shapes, dtypes, spans and the pool; q and out may have no memory. Null:
  // none.
  std::vector<int32_t> (*kv_len_buckets)(const PagedAttentionArgs&, const OpContext&) = nullptr;
  // Null where fusing saves nothing (CPU); layers then run the separate ops.
  void (*fused_linear)(const FusedLinearArgs&, const OpContext&) = nullptr;
  void (*norm_rotary)(const NormRotaryArgs&, const OpContext&) = nullptr;
  // Null on a CPU: layers implement these themselves.
  void (*expert_routing)(const ExpertRoutingArgs&, const OpContext&) = nullptr;
  void (*expert_mlp)(const ExpertMLPArgs&, const OpContext&) = nullptr;
  void (*merge_tokens)(const MergeTokensArgs&, const OpContext&) = nullptr;
  void (*soft_embedding)(const SoftEmbeddingArgs&, const OpContext&) = nullptr;
  void (*denoise_step)(const DenoiseStepArgs&, const OpContext&) = nullptr;
  int32_t library_rows = 16;     // smallest M at which a CPU's matrix library beats `linear` in default mode
  int32_t most_head_dim = 0;     // largest head size of keys and values in paged_attention; 0: any
  int32_t most_gdn_key_dim = 0;  // largest head_k_dim of gated_delta_rule; 0: any
  int32_t most_conv_width = 0;   // most taps of causal_conv1d; 0: any
  int32_t most_experts = 0;      // most experts of expert_routing; 0: any
  int32_t most_vocab = 0;        // largest vocabulary of sample_tokens; 0: any
};

}  // namespace headrace
