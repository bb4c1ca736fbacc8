// Loads Q into the shared memory of a Hopper attention CTA.
#pragma once
#include "headrace/ops/cuda/arch/wgmma_mma.cuh"
#include "headrace/ops/cuda/attention/sm90/fmha_kernel_traits.cuh"
#include "headrace/ops/cuda/attention/sm90/queries_as_halves.cuh"

namespace headrace::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Warp that loads Q for one consumer warpgroup: that of the next work tile while the previous one ends.
template <class S>
struct QueryLoader {
  const AttentionParams& p;
  SharedLayout<S> shared;
  int consumer, lane;
  PackedRows packed;
  uint32_t phase = 0;

  __device__ void run() {
    Control<S>& control = shared.control();
    PipelineState<2> at;
    for (;; at.next()) {
      barrier_wait_asleep(shared_address(&control.work_full[at.stage]), at.phase);
      const Work& work = control.work[at.stage];
      const int request = work.request, row0 = work.row0 + (S::kRowGroups == 1 ? 0 : consumer * 64), rows = work.rows,
                kv_head = work.kv_head;
      const int64_t token0 = work.span.q_off;
      const bool any = work.slot != Work::kNothing && row0 < rows;
      barrier_arrive(shared_address(&control.work_empty[at.stage]));
      if (request < 0) return;
      if (any) load(token0, row0, rows, kv_head);
    }
  }

 private:
  __device__ void load(int64_t token0, int row0, int rows, int kv_head) {
    Control<S>& control = shared.control();
    barrier_wait_asleep(shared_address(&control.q_empty[consumer]), phase ^ 1);
    phase ^= 1;
    const auto* q = static_cast<const typename S::T*>(p.q);
    const uint32_t to = shared_address(shared.q(consumer));
#pragma unroll 4
    for (int i = lane; i < 64 * S::kChunks; i += 32) {
      const int r = i / S::kChunks, c = i % S::kChunks, row = row0 + r;
      const bool inside = row < rows && c * 8 < p.head_dim;
      const int64_t token = token0 + packed.token(row);
      const int head = kv_head * packed.group + packed.head(row);
      const auto* from = inside ? q + token * p.q_token_stride + head * p.q_head_stride + c * 8 : q;
      copy16(to + column_swizzled(64, r, c), from, inside);
    }
    commit_copies();
    wait_copies<0>();
    fence_for_wgmma();
    barrier_arrive(shared_address(&control.q_full[consumer]));
  }
};

// Converts a warp's 16 rows of queries to half floats, in place. Returns the inverses of their power-of-two scales for
// a lane's rows lane / 4 and lane / 4 + 8. Out of line, so that the loop over tiles need not carry this code.
template <class S>
__device__ __noinline__ float2 make_halves(char* rows, int warp, int lane) {
  const int r = warp * 16 + lane / 2;
  const auto at = [&](int i) -> uint4& {  // without bank conflicts
    return *reinterpret_cast<uint4*>(rows + column_swizzled(64, r, i / 4 * 8 + lane % 2 * 4 + i % 4));
  };
  LargestPair largest;
#pragma unroll
  for (int i = 0; i < S::kChunks / 2; ++i) {
    const uint4 x = at(i);
    largest.look(x.x), largest.look(x.y), largest.look(x.z), largest.look(x.w);
  }
  largest.look_of_lane(1);
  const HalvesScale scale(largest);
#pragma unroll
  for (int i = 0; i < S::kChunks / 2; ++i) at(i) = scale.halves(at(i));
  return {__shfl_sync(0xffffffffu, scale.inverse, lane / 4 * 2),
          __shfl_sync(0xffffffffu, scale.inverse, lane / 4 * 2 + 16)};
}

#endif

}  // namespace headrace::cuda
