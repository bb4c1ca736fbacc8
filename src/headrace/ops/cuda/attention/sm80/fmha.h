// What the tensor-core attention kernels that any device runs are launched with.
#pragma once
#include "headrace/ops/cuda/attention/attention_params.h"
#include "headrace/ops/cuda/runtime/stream.h"

namespace headrace::cuda {

// One of these for each type of the queries, head size and kind of pool, in a file of its own: they are slow to
// compile.
template <class T, int kDim, PoolElements kPool>
void fmha_mma_of(const AttentionParams& p, const AttentionShape& shape, const Stream& stream);

struct SplitPlan;
// Adds up the parts of all rows, in order, into the results.
void join_mma_parts(const AttentionParams& p, const SplitPlan& plan, const Stream& stream);

}  // namespace headrace::cuda
