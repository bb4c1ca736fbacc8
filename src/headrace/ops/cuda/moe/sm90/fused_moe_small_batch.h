// The experts of a few tokens in one kernel on Hopper.
#pragma once
#include "headrace/ops/cuda/moe/expert_sum.h"
#include "headrace/ops/cuda/moe/grouped_gemm.h"

namespace headrace::cuda {

inline constexpr int kMostSlotsAtOnce = 128;

// Of products that the Hopper kernel takes: whether their tiles are single slots, as many as there are counters for.
bool fused_moe_small_batch_supports(const GroupedGemm& gate_up, const ExpertSum& sum);
// The same results as those of the two products and the sum, to the bit. Rows of `sum` lie in pieces.
void fused_moe_small_batch(const GroupedGemm& gate_up, const GroupedGemm& down, const ExpertSum& sum,
                           const Stream& stream);

}  // namespace headrace::cuda
