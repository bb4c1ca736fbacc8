// Cuts a batch's attention into work tiles, once for all layers that see the same keys.
#include "headrace/ops/cuda/arch/pdl.cuh"
#include "headrace/ops/cuda/attention/sm90/tile_scheduler.cuh"
#include "headrace/ops/cuda/runtime/stream.h"

namespace headrace::cuda {
namespace {

constexpr unsigned kWarps = 4;

__global__ void __launch_bounds__(kWarps * 32) plan_work(const __grid_constant__ AttentionCall call) {
  pdl_wait();
  const WorkList list(call);
  const unsigned warp = blockIdx.x * kWarps + threadIdx.x / 32, warps = gridDim.x * kWarps;
  if (call.plan.sharing == WorkPlan::Sharing::kQueue) {
    list.write_queue(warp, warps);
  } else {
    for (unsigned block = warp; block < static_cast<unsigned>(call.blocks); block += warps) list.write_share(block);
  }
}

}  // namespace

void plan_attention_sm90(const AttentionCall& call, const Stream& stream) {
  launch_pdl(stream, plan_work, dim3(static_cast<unsigned>(call.blocks)), dim3(kWarps * 32), 0, call,
             "paged_attention: planning");
}

}  // namespace headrace::cuda
