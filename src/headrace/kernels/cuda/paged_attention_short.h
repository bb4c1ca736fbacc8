// When each warp takes a request and kv head whole.
#pragma once
#include <cstdint>

#include "headrace/kernels/cuda/paged_attention.h"

namespace headrace::cuda {

constexpr int kShortRows = 40, kShortSeenKeys = 640;  // of a request at most: more than 32 rows read the keys again

// Whether each request and kv head is one warp's: heads of 128, enough of them for two warps to a multiprocessor, and
// few rows that see few keys, so that beginnings and ends are much of the work.
inline bool taken_whole(int64_t pieces, int max_rows, int seen_keys, int dim, int num_sms) {
  return dim > 64 && dim <= 128 && max_rows <= kShortRows && seen_keys <= kShortSeenKeys && pieces >= 2 * num_sms;
}

// 16-bit floats on Hopper in fast mode. False when the call or the device is not of that form.
bool paged_attention_short(const AttentionParams& params, const AttentionShape& shape, const Stream& stream);

}  // namespace headrace::cuda
