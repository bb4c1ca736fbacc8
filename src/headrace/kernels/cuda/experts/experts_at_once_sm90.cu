// Which experts the kernel of Hopper takes at once.
#include "headrace/kernels/cuda/experts/experts_at_once_sm90.cuh"

#include "headrace/kernels/cuda/matmul/product_chain.h"
#include "headrace/kernels/cuda/primitives/launch.cuh"

namespace headrace::cuda {
namespace grouped {

extern template void experts_at_once_of<__nv_bfloat16>(const GroupedMatmul&, const GroupedMatmul&, const ExpertSum&,
                                                       const Stream&, GridRuns);
extern template void experts_at_once_of<__half>(const GroupedMatmul&, const GroupedMatmul&, const ExpertSum&,
                                                const Stream&, GridRuns);

}  // namespace grouped

bool experts_at_once_supports(const GroupedMatmul& gate_up, const ExpertSum& sum) {
  const ExpertGroups& groups = gate_up.groups;
  constexpr int64_t kColumns = 128;  // of a tile of down
  const int64_t sums = sum.tokens * ((sum.hidden + kColumns - 1) / kColumns);
  return groups.of == ExpertGroups::Tiles::kOfSlots && groups.slots <= kMostSlotsAtOnce &&
         groups.slots + sums < Stream::kCounters;  // and one for the blocks that have ended
}

// Blocks wait for one another, as those of a chain do: launch_waiting() in product_chain.cu says why they come to be
// there at the same time.
void experts_at_once(const GroupedMatmul& gate_up, const GroupedMatmul& down, const ExpertSum& sum,
                     const Stream& stream) {
  const GridRuns runs = stream.chain->device_is_shared() ? GridRuns::kAtOnce : GridRuns::kInAnyOrder;
  gate_up.x.type == DType::kBF16 ? grouped::experts_at_once_of<__nv_bfloat16>(gate_up, down, sum, stream, runs)
                                 : grouped::experts_at_once_of<__half>(gate_up, down, sum, stream, runs);
}

}  // namespace headrace::cuda
