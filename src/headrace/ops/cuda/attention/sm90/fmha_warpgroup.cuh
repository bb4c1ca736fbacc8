// A consumer warpgroup of a Hopper attention CTA, as one of its threads sees it.
#pragma once
#include "headrace/ops/cuda/attention/common/merge_states.cuh"
#include "headrace/ops/cuda/attention/sm90/fmha_kernel_traits.cuh"
#include "headrace/ops/cuda/attention/sm90/row_factors.cuh"

namespace headrace::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <class S>
struct Warpgroup {
  using Factors = std::conditional_t<S::kFp8, RowFactors, float>;
  const AttentionParams& p;
  const WorkPlan& plan;
  SharedLayout<S> shared;
  int number, thread, lane, warp;  // number: of the warpgroup; the others: within it
  Factors to_log2;                 // converts scores, as MMAs produce them, to base 2
  PackedRows packed;

  __device__ Warpgroup(const AttentionParams& params, const WorkPlan& work_plan, const SharedLayout<S>& layout,
                       int number_, int thread_)
      : p(params),
        plan(work_plan),
        shared(layout),
        number(number_),
        thread(thread_),
        lane(thread_ % 32),
        warp(thread_ / 32),
        to_log2(both(params.cap > 0 ? kLog2e : params.scale * kLog2e)),
        packed(params.heads / params.kv_heads) {}

  __device__ static Factors both(float x) {
    if constexpr (S::kFp8) {
      return {{x, x}};
    } else {
      return x;
    }
  }
  __device__ int row_group() const { return S::kRowGroups == 1 ? 0 : number; }
  __device__ int kv_warpgroup() const { return S::kKVWarpgroups == 1 ? 0 : number; }
  // Calls `use` with a compile-time constant: the number of this warpgroup, or of another.
  template <class F>
  __device__ static void with_constant(int number, F use) {
    if (number == 0) {
      use(std::integral_constant<int, 0>());
      return;
    }
    asm volatile("" : "+r"(number));  // prevents a jump table, which is slow
    if (S::kWarpgroups == 2 || number == 1) {
      use(std::integral_constant<int, 1>());
    } else {
      use(std::integral_constant<int, 2>());
    }
  }
  __device__ void sync() const {
    with_constant(number, []<int kNumber>(std::integral_constant<int, kNumber>) { named_barrier<1 + kNumber, 128>(); });
  }
  __device__ int row_of(int half) const { return row_group() * 64 + warp * 16 + half * 8 + lane / 4; }

  // Signals that the warp is done with what the barrier guards. Where the dequant warpgroup writes there next (FP8),
  // each lane arrives itself: the race checker does not follow one lane that arrives for the others.
  __device__ void release(uint64_t& empty) const {
    if constexpr (S::kFp8) return barrier_arrive(shared_address(&empty));
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(&empty));
  }
  __device__ bool any_of_group(bool mine) const { return cuda::any_of_group(1 + number, mine); }

  // The warpgroups take turns (ping-pong), so that one issues MMAs while the others compute weights. Predicated, not
  // branched: a branch and its reconvergence would delay a turn's MMAs.
  __device__ void take_turn(bool turns) const {
    each_of_turns([&]<int kNumber>(std::integral_constant<int, kNumber>) {
      asm volatile("{ .reg .pred p; setp.ne.b32 p, %0, 0; @p bar.sync %1, 256; }" ::"r"(
                       static_cast<int>(turns && number == kNumber)),
                   "n"(4 + kNumber)
                   : "memory");
    });
  }
  __device__ void give_turn(bool turns) const {
    each_of_turns([&]<int kNumber>(std::integral_constant<int, kNumber>) {
      asm volatile("{ .reg .pred p; setp.ne.b32 p, %0, 0; @p bar.arrive %1, 256; }" ::"r"(
                       static_cast<int>(turns && number == kNumber)),
                   "n"(4 + (kNumber + 1) % S::kRowGroups)
                   : "memory");
    });
  }
  // Calls `use` with the number, a compile-time constant, of each warpgroup that takes turns.
  template <class F>
  __device__ static void each_of_turns(F use) {
    if constexpr (S::kRowGroups > 1) use(std::integral_constant<int, 0>()), use(std::integral_constant<int, 1>());
    if constexpr (S::kRowGroups > 2) use(std::integral_constant<int, 2>());
  }
};

#endif

}  // namespace headrace::cuda
