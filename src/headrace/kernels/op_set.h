// The ops of one implementation: a table of functions, filled in by reference/, by each instruction set of cpu/
// and by the CUDA module.
#pragma once
#include <string_view>

#include "headrace/kernels/attention_step.h"
#include "headrace/kernels/block_step.h"
#include "headrace/kernels/causal_conv1d.h"
#include "headrace/kernels/embedding.h"
#include "headrace/kernels/expert_mlp.h"
#include "headrace/kernels/expert_routing.h"
#include "headrace/kernels/fused_linear.h"
#include "headrace/kernels/gated_delta_rule.h"
#include "headrace/kernels/gdn_step.h"
#include "headrace/kernels/linear.h"
#include "headrace/kernels/merge_tokens.h"
#include "headrace/kernels/norm_rotary.h"
#include "headrace/kernels/paged_attention.h"
#include "headrace/kernels/penalize_tokens.h"
#include "headrace/kernels/pointwise.h"
#include "headrace/kernels/rms_norm.h"
#include "headrace/kernels/rotary_embedding.h"
#include "headrace/kernels/sample_tokens.h"
#include "headrace/kernels/soft_embedding.h"
#include "headrace/kernels/store_kv.h"
#include "headrace/kernels/token_confidence.h"

namespace headrace {

// Every function checks its Args first (Error kInvalidArgument), returns early on empty work and writes its
// outputs in full. Immutable; callable from any thread.
struct OpSet {
  std::string_view name;  // what a run report says: "reference", "portable", "avx2", "avx512", "avx512bf16", "amx"
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
  // Optional: null where it is not built. false: these sizes, dtypes or strictness are not, nothing was done, and the
  // ops that it stands for run one by one.
  bool (*gdn_step)(const GDNStepArgs&, const OpContext&) = nullptr;
  bool (*attention_step)(const AttentionStepArgs&, const OpContext&) = nullptr;
  // Null where one launch is as dear as several: then layers run its parts.
  void (*fused_linear)(const FusedLinearArgs&, const OpContext&) = nullptr;
  void (*norm_rotary)(const NormRotaryArgs&, const OpContext&) = nullptr;
  // Null on a CPU, where layers do these in place.
  void (*expert_routing)(const ExpertRoutingArgs&, const OpContext&) = nullptr;
  void (*expert_mlp)(const ExpertMLPArgs&, const OpContext&) = nullptr;
  void (*merge_tokens)(const MergeTokensArgs&, const OpContext&) = nullptr;
  void (*soft_embedding)(const SoftEmbeddingArgs&, const OpContext&) = nullptr;
  void (*block_step)(const BlockStepArgs&, const OpContext&) = nullptr;
  int32_t library_rows = 16;     // from so many rows on a CPU's matrix library is faster than `linear` in fast mode
  int32_t most_head_dim = 0;     // that paged_attention takes, of keys and of values; 0: any
  int32_t most_gdn_key_dim = 0;  // that gated_delta_rule takes; 0: any
  int32_t most_conv_width = 0;   // taps that causal_conv1d takes; 0: any
  int32_t most_experts = 0;      // that expert_routing chooses among; 0: any
  int32_t most_vocab = 0;        // ids that sample_tokens draws from; 0: any
};

}  // namespace headrace
