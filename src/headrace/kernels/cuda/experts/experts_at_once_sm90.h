// The experts of a few tokens in one kernel on Hopper.
#pragma once
#include "headrace/kernels/cuda/experts/expert_sum.h"
#include "headrace/kernels/cuda/experts/grouped_matmul.h"

namespace headrace::cuda {

inline constexpr int kMostTokensAtOnce = 8;
// Whether gate_up, down and sum, of tiles of single slots, are what the kernel is built for: as
// grouped_sm90_supports, and no more tokens and slots than there are counters for.
bool experts_at_once_supports(const GroupedMatmul& gate_up, const ExpertSum& sum, const Stream& stream);
// The same results as those of the two products and the sum, to the bit.
void experts_at_once(const GroupedMatmul& gate_up, const GroupedMatmul& down, const ExpertSum& sum,
                     const Stream& stream);

}  // namespace headrace::cuda
