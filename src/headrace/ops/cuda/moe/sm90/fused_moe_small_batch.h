// Fused MoE for small batches: the experts of a few tokens in one kernel of sm_90.
#pragma once
#include "headrace/ops/cuda/moe/expert_sum.h"
#include "headrace/ops/cuda/moe/grouped_gemm.h"

namespace headrace::cuda {

inline constexpr int kMostSlotsAtOnce = 128;

// Returns true if every tile is one slot and there are counters for all of them. grouped_sm90_supports must hold.
bool fused_moe_small_batch_supports(const GroupedGemm& gate_up, const ExpertSum& sum);
// Runs both GEMMs and the sum, with the same bits as the separate kernels. Rows of `sum` are 16-byte vectors (is_vec8).
// Throws kCuda.
void fused_moe_small_batch(const GroupedGemm& gate_up, const GroupedGemm& down, const ExpertSum& sum,
                           const Stream& stream);

}  // namespace headrace::cuda
