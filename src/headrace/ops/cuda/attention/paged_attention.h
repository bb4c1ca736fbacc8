// The CUDA attention kernels, and which calls they take.
#pragma once
#include "headrace/ops/cuda/attention/attention_params.h"
#include "headrace/ops/paged_attention.h"

namespace headrace::cuda {

AttentionParams params_of(const PagedAttentionArgs& args);

// Any dtype and any head size up to 512: one block for each row and head.
void simt_attention(const AttentionParams& params, const Stream& stream);

// 16-bit floats on Hopper in fast mode, few rows that see few keys. False when the call or the device is not of that
// form.
bool paged_attention_cluster(const AttentionParams& params, const AttentionShape& shape, const Stream& stream);

// Whether dtypes, sizes and alignment are those of tensor cores and 16-byte copies.
bool fits_sm80(const AttentionParams& params);
// 16-bit floats on tensor cores (mma.sync), any head size up to 256. False when the call is not of that form.
bool fmha_sm80(const AttentionParams& params, const AttentionShape& shape, const Stream& stream);

// Whether dtypes, sizes and alignment are those of the Hopper kernel below, and the device is.
bool fits_sm90(const AttentionParams& params, const Stream& stream);
// Few such rows, with that kernel's strict bits: in strict mode, and where it is faster in fast mode, too, in which up
// to 16 rows of one request that see many keys have sums of another order. False when the call is not of that form.
bool paged_attention_strict_cluster(const AttentionParams& params, const AttentionShape& shape, const Stream& stream);
// Says to `plans`, which may be null, for how many keys at most, fewer than the call's, that would be another plan: of
// that form at all, or with larger clusters. In a graph for many keys a row has as small ones as all of these want.
void note_cluster_decode_keys(const AttentionParams& params, const AttentionShape& shape, const Stream& stream,
                              AttentionPlanCache* plans);

// 16-bit floats on Hopper (wgmma and the copy engine), over pools of these or of FP8, any head size up to 256, keys
// from pages of at least 8 slots. False when the call or the device is not of that form. `plans`: of the batch, or
// null.
bool fmha_sm90(const AttentionParams& params, const AttentionShape& shape, AttentionPlanCache* plans,
               const Stream& stream);

}  // namespace headrace::cuda
