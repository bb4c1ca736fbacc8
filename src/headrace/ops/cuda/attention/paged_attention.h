// CUDA attention kernels and the calls that each supports.
#pragma once
#include "headrace/ops/cuda/attention/attention_params.h"
#include "headrace/ops/paged_attention.h"

namespace headrace::cuda {

// Returns the launch parameters of `args`. Pointers refer to the caller's memory.
AttentionParams params_of(const PagedAttentionArgs& args);

// Launches the SIMT kernel: any dtype, head sizes up to 512, one CTA per row and query head. Throws kUnsupported for
// larger heads.
void simt_attention(const AttentionParams& params, const Stream& stream);

// Cluster kernel of default mode: 16-bit floats on Hopper, few rows that see few keys. Returns false and launches
// nothing if the call or the device is unsupported.
bool paged_attention_cluster(const AttentionParams& params, const AttentionShape& shape, const Stream& stream);

// Returns true if dtypes, head sizes and alignment suit tensor cores and 16-byte copies.
bool fits_sm80(const AttentionParams& params);
// FlashAttention by mma.sync: 16-bit queries, head sizes up to 256. Returns false and launches nothing if fits_sm80()
// is false.
bool fmha_sm80(const AttentionParams& params, const AttentionShape& shape, const Stream& stream);

// Returns true if the device is Hopper and dtypes, head sizes and alignment suit fmha_sm90().
bool fits_sm90(const AttentionParams& params, const Stream& stream);
// Cluster decode of few rows on Hopper. In batch-invariant mode its bits equal those of fmha_sm90(). Default mode uses
// it where it is faster; up to 16 rows of one request that see many keys are then summed in another order. Returns
// false and launches nothing if the call is unsupported.
bool paged_attention_strict_cluster(const AttentionParams& params, const AttentionShape& shape, const Stream& stream);
// Registers with `plans` (may be null) shorter KV lengths at which this call would choose another plan: cluster decode
// at all, or larger clusters. Graph capture then records one graph per KV-length bucket. A graph for many keys uses the
// smallest clusters that any of its lengths wants.
void note_cluster_decode_keys(const AttentionParams& params, const AttentionShape& shape, const Stream& stream,
                              AttentionPlanCache* plans);

// FlashAttention on Hopper (TMA + WGMMA): 16-bit queries, a pool of the same type or of FP8. Head sizes are up to 256,
// pages have at least 8 slots. `plans` is the batch's plan cache, or null. Returns false and launches nothing if the
// call or the device is unsupported.
bool fmha_sm90(const AttentionParams& params, const AttentionShape& shape, AttentionPlanCache* plans,
               const Stream& stream);

}  // namespace headrace::cuda
