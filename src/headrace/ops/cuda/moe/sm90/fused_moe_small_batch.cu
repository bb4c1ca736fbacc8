// Host side of the fused MoE for small batches.
#include "headrace/ops/cuda/moe/sm90/fused_moe_small_batch.cuh"

#include "headrace/ops/cuda/arch/pdl.cuh"

namespace headrace::cuda {
namespace grouped {

extern template void fused_moe_small_batch_of<__nv_bfloat16>(const GroupedGemm&, const GroupedGemm&, const ExpertSum&,
                                                             const Stream&, GridRuns);
extern template void fused_moe_small_batch_of<__half>(const GroupedGemm&, const GroupedGemm&, const ExpertSum&,
                                                      const Stream&, GridRuns);

}  // namespace grouped

bool fused_moe_small_batch_supports(const GroupedGemm& gate_up, const ExpertSum& sum) {
  const ExpertGroups& groups = gate_up.groups;
  constexpr int64_t kColumns = 128;  // of a tile of down
  const int64_t sums = sum.tokens * ((sum.hidden + kColumns - 1) / kColumns);
  return groups.of == ExpertGroups::Tiles::kOfSlots && groups.slots <= kMostSlotsAtOnce &&
         groups.slots + sums < Stream::kCounters;  // and one for the CTAs that have ended
}

// CTAs wait for one another, as those of a GEMM sequence do: run_gemm_sequence() in gemm_sequence.cu says why all of
// them are resident.
void fused_moe_small_batch(const GroupedGemm& gate_up, const GroupedGemm& down, const ExpertSum& sum,
                           const Stream& stream) {
  const GridRuns runs = stream.has_other_processes ? GridRuns::kAtOnce : GridRuns::kInAnyOrder;
  gate_up.x.type == DType::kBF16 ? grouped::fused_moe_small_batch_of<__nv_bfloat16>(gate_up, down, sum, stream, runs)
                                 : grouped::fused_moe_small_batch_of<__half>(gate_up, down, sum, stream, runs);
}

}  // namespace headrace::cuda
