// Launch of the sm80 attention kernels, which any supported device runs.
#pragma once
#include "headrace/ops/cuda/attention/attention_params.h"
#include "headrace/ops/cuda/runtime/stream.h"

namespace headrace::cuda {

// Launches attention and, if rows are split, the merge. Each combination of query type, head size and pool type is
// instantiated in a file of its own, because it compiles slowly.
template <class T, int kDim, PoolElements kPool>
void fmha_mma_of(const AttentionParams& p, const AttentionShape& shape, const Stream& stream);

struct SplitPlan;
// Launches the merge of all rows' KV splits, in order, into the results.
void merge_splits_sm80(const AttentionParams& p, const SplitPlan& plan, const Stream& stream);

}  // namespace headrace::cuda
