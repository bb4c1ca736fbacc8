// The experts of a few tokens in one kernel on Hopper.
#pragma once
#include "headrace/kernels/cuda/experts/expert_sum.h"
#include "headrace/kernels/cuda/experts/grouped_matmul.h"

namespace headrace::cuda {

inline constexpr int kMostSlotsAtOnce = 128;

// Of products that the Hopper kernel takes: whether their tiles are single slots, as many as there are counters for.
bool experts_at_once_supports(const GroupedMatmul& gate_up, const ExpertSum& sum);
// The same results as those of the two products and the sum, to the bit. Rows of `sum` lie in pieces.
void experts_at_once(const GroupedMatmul& gate_up, const GroupedMatmul& down, const ExpertSum& sum,
                     const Stream& stream);

}  // namespace headrace::cuda
