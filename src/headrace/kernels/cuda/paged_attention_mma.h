// What the tensor-core attention kernels that any device runs are launched with.
#pragma once
#include <cstdint>

#include "headrace/kernels/cuda/paged_attention.h"
#include "headrace/kernels/cuda/stream.h"

namespace headrace::cuda {

// What the pool holds: numbers of the queries' type, or codes of FP8, which are copied as they are and unpacked to a
// tile of the queries' type.
enum class PoolOf : uint8_t { kFloats, kCodes };

// One of these for each type of the queries, head size and kind of pool, in a file of its own: they are slow to
// compile.
template <class T, int kDim, PoolOf kPool>
void attend_mma_of(const AttentionParams& p, const AttentionShape& shape, const Stream& stream);

}  // namespace headrace::cuda
