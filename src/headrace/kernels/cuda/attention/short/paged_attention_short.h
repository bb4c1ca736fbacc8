// When each warp takes a request and kv head whole.
#pragma once
#include <cstdint>

#include "headrace/kernels/cuda/attention/paged_attention.h"

namespace headrace::cuda {

constexpr int kShortRows = 40;  // of a request at most: more than 32 rows read the keys again

// Keys that a row sees at most. In strict mode reading them twice costs most.
constexpr int most_short_keys(int max_rows, Determinism determinism) {
  return determinism == Determinism::kStrict && max_rows > 32 ? 384 : 640;
}

// Whether each request and kv head is one warp's where keys are that few, so that beginnings and ends are much of the
// work: heads of 128, enough of them for two warps to a multiprocessor, and few rows. `pieces`: requests times kv
// heads.
inline bool taken_whole(int64_t pieces, int max_rows, int dim, int num_sms) {
  return dim > 64 && dim <= 128 && max_rows <= kShortRows && pieces >= 2 * num_sms;
}

// 16-bit floats on Hopper; in strict mode with the Hopper kernel's bits. False when the call or the device is not of
// that form.
bool paged_attention_short(const AttentionParams& params, const AttentionShape& shape, const Stream& stream);
// Of a call that is not of that form for its number of keys alone: how many would be. 0: another reason, or none.
int shorter_keys(const AttentionParams& params, const AttentionShape& shape, const Stream& stream);

}  // namespace headrace::cuda
