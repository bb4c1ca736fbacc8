// The warpgroup of a Hopper attention block that turns codes of FP8 into tiles of the queries' type.
#pragma once
#include "headrace/kernels/cuda/attention_sm90_shape.cuh"
#include "headrace/kernels/cuda/wgmma_products.cuh"

namespace headrace::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Follows the pieces of work as the warpgroup that multiplies does, and fills the stages that it waits for.
template <class S>
struct Unpacker {
  SharedLayout<S> shared;
  int thread;
  RingPlace<S::kStages> place{};
  RingPlace<S::kCodeStages> codes{};

  __device__ void run() {
    Control<S>& control = shared.control();
    RingPlace<2> at;
    for (;; at.next()) {
      barrier_wait(shared_address(&control.work_full[at.stage]), at.phase);
      const Work& work = control.work[at.stage];
      const int request = work.request, tiles = work.slot == Work::kNothing ? 0 : work.end - work.begin;
      barrier_arrive(shared_address(&control.work_empty[at.stage]));
      if (request < 0) return;
      for (int i = 0; i < tiles; ++i, place.next(), codes.next()) {
        unpack(shared.k_codes(codes.stage), shared.k(place.stage), control.k_codes_full[codes.stage],
               control.k_codes_empty[codes.stage], control.k_full[0][place.stage], control.k_empty[place.stage]);
        unpack(shared.v_codes(codes.stage), shared.v(place.stage), control.v_codes_full[codes.stage],
               control.v_codes_empty[codes.stage], control.v_full[0][place.stage], control.v_empty[place.stage]);
      }
    }
  }

 private:
  __device__ void unpack(const char* from, uint32_t to, uint64_t& codes_full, uint64_t& codes_empty, uint64_t& full,
                         uint64_t& empty) const {
    constexpr int kPieces = S::kDim / 16;  // of a row: sixteen codes each
    char* const base = shared.base + (to - shared_address(shared.base));
    barrier_wait(shared_address(&codes_full), codes.phase);
    barrier_wait(shared_address(&empty), place.phase ^ 1);
#pragma unroll 4
    for (int i = thread; i < S::kKeys * kPieces; i += 128) {
      const int row = i / kPieces, piece = i % kPieces;
      const uint4 x = *reinterpret_cast<const uint4*>(from + i * 16);
      const uint4 low = e4m3_to_floats<typename S::T>(x.x, x.y), high = e4m3_to_floats<typename S::T>(x.z, x.w);
      // Pieces of neighbouring columns would meet in one bank: those of odd ones are written in the other order.
      const bool swapped = (piece / 4 & 1) != 0;
      *reinterpret_cast<uint4*>(base + column_swizzled(S::kKeys, row, 2 * piece + swapped)) = swapped ? high : low;
      *reinterpret_cast<uint4*>(base + column_swizzled(S::kKeys, row, 2 * piece + !swapped)) = swapped ? low : high;
    }
    fence_for_wgmma();
    barrier_arrive(shared_address(&codes_empty));
    barrier_arrive(shared_address(&full));
  }
};

#endif

}  // namespace headrace::cuda
