// Dequant warpgroup of a Hopper attention CTA: converts FP8 tiles to half-float tiles.
#pragma once
#include "headrace/ops/cuda/arch/wgmma_mma.cuh"
#include "headrace/ops/cuda/attention/sm90/fmha_kernel_traits.cuh"

namespace headrace::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Follows the work tiles as the consumer warpgroup does, and fills the stages that it waits for.
template <class S>
struct Dequantizer {
  SharedLayout<S> shared;
  int thread;
  PipelineState<S::kStages> place{};
  PipelineState<S::kCodeStages> codes{};

  __device__ void run() {
    Control<S>& control = shared.control();
    PipelineState<2> at;
    for (;; at.next()) {
      barrier_wait(shared_address(&control.work_full[at.stage]), at.phase);
      const Work& work = control.work[at.stage];
      const int request = work.request, tiles = work.slot == Work::kNothing ? 0 : work.end - work.begin;
      barrier_arrive(shared_address(&control.work_empty[at.stage]));
      if (request < 0) return;
      for (int i = 0; i < tiles; ++i, place.next(), codes.next()) {
        const PipelineState<S::kStages> k = S::key_place(place);
        unpack(shared.k_fp8(codes.stage), shared.k(k.stage), control.k_codes_full[codes.stage],
               control.k_codes_empty[codes.stage], control.k_full[0][k.stage], control.k_empty[k.stage], k.phase ^ 1);
        unpack(shared.v_fp8(codes.stage), shared.v(place.stage), control.v_codes_full[codes.stage],
               control.v_codes_empty[codes.stage], control.v_full[0][place.stage], control.v_empty[place.stage],
               place.phase ^ 1);
      }
    }
  }

 private:
  // Dequantises one tile. A thread loads all of its FP8 values before it uses the first, because the compiler keeps
  // loads behind preceding stores.
  __device__ void unpack(const char* from, uint32_t to, uint64_t& codes_full, uint64_t& codes_empty, uint64_t& full,
                         uint64_t& empty, uint32_t empty_phase) const {
    constexpr int kPieces = S::kDim / 16, kRowsAtOnce = 128 / kPieces;  // chunks of a row: 16 FP8 values each
    constexpr int kSteps = S::kKeys / kRowsAtOnce;
    static_assert(kRowsAtOnce % 8 == 0, "the swizzle of a thread's rows is the same");
    const int row = thread / kPieces, piece = thread % kPieces;
    // Chunks of neighbouring columns would conflict in one bank, so those of odd ones are written in the other order.
    const bool swapped = (piece / 4 & 1) != 0;
    char* const base = shared.base + (to - shared_address(shared.base));
    char* const first = base + column_swizzled(S::kKeys, row, 2 * piece + swapped);
    char* const second = base + column_swizzled(S::kKeys, row, 2 * piece + !swapped);
    barrier_wait(shared_address(&codes_full), codes.phase);
    uint4 x[kSteps];
#pragma unroll
    for (int i = 0; i < kSteps; ++i) x[i] = *reinterpret_cast<const uint4*>(from + (i * 128 + thread) * 16);
    barrier_wait(shared_address(&empty), empty_phase);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const uint2 low = {x[i].x, x[i].y}, high = {x[i].z, x[i].w};
      const uint2 to_first = swapped ? high : low, to_second = swapped ? low : high;
      *reinterpret_cast<uint4*>(first + i * kRowsAtOnce * 128) = e4m3_to_floats<typename S::M>(to_first.x, to_first.y);
      *reinterpret_cast<uint4*>(second + i * kRowsAtOnce * 128) =
          e4m3_to_floats<typename S::M>(to_second.x, to_second.y);
    }
    fence_for_wgmma();
    // Both arrivals come after the fence. The fence makes the stores visible to WGMMA, and orders the loads before
    // TMA's next writes to their stage. An arrival alone does not order them: loads still in flight then read values of
    // another tile.
    barrier_arrive(shared_address(&codes_empty));
    barrier_arrive(shared_address(&full));
  }
};

#endif

}  // namespace headrace::cuda
