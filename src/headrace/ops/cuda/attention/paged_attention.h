// Launches of the CUDA attention families. choose_attention() (heuristics.h) says which of them supports a call.
#pragma once
#include "headrace/ops/cuda/attention/attention_problem.h"

namespace headrace {
class AttentionPlanCache;
}

namespace headrace::cuda {

struct Gate;

// Returns the configuration of a call, without the families that `context` leaves out.
AttentionConfig choose_attention(const AttentionParams& params, const AttentionShape& shape, const OpContext& context);

// Cluster decode of few rows on Hopper. In batch-invariant mode its bits equal those of fmha_sm90(). Multiplies the
// results by the sigmoid of `gate` if its data is not null.
void cluster_decode(const AttentionParams& params, const AttentionShape& shape, const ClusterDecodePlan& plan,
                    const Gate& gate, const Stream& stream);

// Short-KV decode on Hopper, by a warp or a CTA per request and KV head. In batch-invariant mode its bits equal those
// of fmha_sm90().
void short_kv_decode(const AttentionParams& params, const AttentionShape& shape, const AttentionConfig& config,
                     const Stream& stream);

// FlashAttention on Hopper (TMA + WGMMA), and FP8 decode: 16-bit queries, a pool of the same type or of FP8. `plans` is
// the batch's plan cache, or null.
void fmha_sm90(const AttentionParams& params, const AttentionShape& shape, const AttentionConfig& config,
               AttentionPlanCache* plans, const Stream& stream);

// FlashAttention by mma.sync: 16-bit queries, head sizes up to 256.
void fmha_sm80(const AttentionParams& params, const AttentionShape& shape, const Stream& stream);

// Launches the SIMT kernel: any dtype, head sizes up to 512, one CTA per row and query head. Throws kUnsupported for
// larger heads.
void simt_attention(const AttentionParams& params, const Stream& stream);

}  // namespace headrace::cuda
