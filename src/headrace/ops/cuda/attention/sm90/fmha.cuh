// FlashAttention of 16-bit floats on Hopper, warp-specialised. One warp loads tiles of K and V from the pool's pages by
// TMA, or gathers their rows with a second warp; others load Q. One to three consumer warpgroups of 64 rows each issue
// WGMMA. For an FP8 pool a dequant warpgroup converts K and V, and all MMAs are of half floats. Rows are packed as
// (token, query head of the GQA group), so one pass over K and V serves the whole group. Keys may be split; a separate
// kernel merges the splits. Source: Dao 2023, FlashAttention-2; Shah et al. 2024, FlashAttention-3; Dao et al. 2023,
// Flash-Decoding.
#pragma once
#include "headrace/ops/cuda/arch/pdl.cuh"
#include "headrace/ops/cuda/attention/sm90/fmha_fp8_dequant.cuh"
#include "headrace/ops/cuda/attention/sm90/fmha_load_q.cuh"
#include "headrace/ops/cuda/attention/sm90/fmha_mainloop_load.cuh"
#include "headrace/ops/cuda/attention/sm90/fmha_mainloop_mma.cuh"
#include "headrace/ops/cuda/runtime/stream.h"

namespace headrace::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <class S>
__device__ __forceinline__ void attend_sm90_block(const KVMaps& maps, const AttentionParams& p, const WorkPlan& plan,
                                                  char* memory) {
  const SharedLayout<S> shared(memory);
  Control<S>& control = shared.control();
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kStages; ++i) {
      for (int kv_warpgroup = 0; kv_warpgroup < S::kKVWarpgroups; ++kv_warpgroup) {
        constexpr int kArrivals = S::kFp8 ? 128 : S::kGathers ? 32 : 1;
        barrier_init(shared_address(&control.k_full[kv_warpgroup][i]), kArrivals);
        barrier_init(shared_address(&control.v_full[kv_warpgroup][i]), kArrivals);
      }
      for (uint64_t* empty : {&control.k_empty[i], &control.v_empty[i]})
        barrier_init(shared_address(empty), S::kReleases * S::kRowGroups);
    }
    for (int i = 0; i < S::kCodeStages; ++i) {
      for (uint64_t* full : {&control.k_codes_full[i], &control.v_codes_full[i]}) barrier_init(shared_address(full), 1);
      for (uint64_t* empty : {&control.k_codes_empty[i], &control.v_codes_empty[i]})
        barrier_init(shared_address(empty), 128);
    }
    for (int i = 0; i < 2; ++i) {
      barrier_init(shared_address(&control.work_full[i]), 32);
      barrier_init(shared_address(&control.work_empty[i]),
                   (128 + 32) * S::kWarpgroups + S::kFp8 * 128 + S::kGathers * 32);
    }
    for (int i = 0; i < S::kWarpgroups; ++i) {
      barrier_init(shared_address(&control.q_full[i]), 32);
      barrier_init(shared_address(&control.q_empty[i]), S::kReleases);
    }
    control.scratch_taken = 0;
    barrier_init(shared_address(&control.exchange_full), 128);
    barrier_init(shared_address(&control.exchange_empty), 128);
    fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x >= 32) {  // the K/V load warp waits later, when it has to
    pdl_wait();
    pdl_launch_dependents();  // CTAs of the merge kernel may start as soon as there is room
  }
  const int group = static_cast<int>(uniform(threadIdx.x / 128)), thread = threadIdx.x % 128;
  if (group == 0) {
    if constexpr (S::kSharesRegisters) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(S::kProducerRegisters));
    const int warp = thread / 32, lane = thread % 32;
    if (warp == 0) Producer<S>{p, maps, shared, {}, lane}.run(plan);
    if constexpr (S::kGathers) {
      if (warp == 3) ValueGatherer<S>{p, shared, lane}.run();
    }
    if (warp > 0 && warp <= S::kWarpgroups) {
      QueryLoader<S>{p, shared, warp - 1, lane, PackedRows(p.heads / p.kv_heads)}.run();
    }
  } else if (S::kFp8 && group == 1) {
    if constexpr (S::kFp8) {
      asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(S::kDequantizerRegisters));
      Dequantizer<S>{shared, thread}.run();
    }
  } else {
    if constexpr (S::kSharesRegisters) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(S::kConsumerRegisters));
    Consumer<S>{Warpgroup<S>(p, plan, shared, group - 1 - S::kFp8, thread)}.run();
  }
}

#endif

template <class S>
__global__ void __launch_bounds__(S::kThreads, S::kResident) attend_sm90(const __grid_constant__ AttentionCall call) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) char memory[];
  attend_sm90_block<S>(call.maps, call.p, call.plan, memory);
#endif
}

template <class S>
void launch_sm90(const AttentionCall& call, const Stream& stream) {
  launch_pdl(stream, attend_sm90<S>, dim3(static_cast<unsigned>(call.blocks)), dim3(S::kThreads), S::kSharedBytes, call,
             "paged_attention");
}

template <class T, int kDim, PoolElements kPool>
void fmha_prefill(const AttentionCall& call, const Stream& stream) {
  constexpr int kGroups = prefill_rows(kDim, kPool) / 64;
  if (call.plan.stash == nullptr) {  // default mode
    launch_sm90<Sm90Shape<T, kDim, kGroups, 1, 1, kPool, 1, KeyOrder::kLastFirst>>(call, stream);
    return;
  }
  using Strict = Sm90Shape<T, kDim, kGroups, 1, 1, kPool>;
  if constexpr (Strict::kStashesFar) {
    if (call.many_splits)
      return launch_sm90<Sm90Shape<T, kDim, kGroups, 1, 1, kPool, 1, KeyOrder::kFirstFirst, true>>(call, stream);
  }
  launch_sm90<Strict>(call, stream);
}

template <class T, int kDim, PoolElements kPool>
void fmha_decode(const AttentionCall& call, const Stream& stream) {
  if constexpr (kPool == PoolElements::kFp8) {
    launch_sm90<Sm90Shape<T, kDim, 1, 1, 1, kPool>>(call, stream);
  } else if (call.plan.kv_warpgroups == 2) {
    launch_sm90<Sm90Shape<T, kDim, 1, 2>>(call, stream);
  } else if (call.plan.crowded) {
    if constexpr (kDim == 128) launch_sm90<Sm90Shape<T, kDim, 1, 1, 1, PoolElements::kFloats, 2>>(call, stream);
  } else if (call.plan.value_parts == 2) {
    if constexpr (kDim > 128) launch_sm90<Sm90Shape<T, kDim, 1, 1, 2>>(call, stream);
  } else {
    launch_sm90<Sm90Shape<T, kDim, 1, 1>>(call, stream);
  }
}

template <class T, int kDim>
void fmha_gather(const AttentionCall& call, int max_rows, const Stream& stream) {
  constexpr auto kPool = PoolElements::kFloats;
  if (max_rows <= 64) {
    launch_sm90<Sm90Shape<T, kDim, 1, 1, 1, kPool, 1, KeyOrder::kFirstFirst, false, true>>(call, stream);
  } else if (call.plan.stash == nullptr) {  // default mode
    launch_sm90<Sm90Shape<T, kDim, 2, 1, 1, kPool, 1, KeyOrder::kLastFirst, false, true>>(call, stream);
  } else {
    launch_sm90<Sm90Shape<T, kDim, 2, 1, 1, kPool, 1, KeyOrder::kFirstFirst, false, true>>(call, stream);
  }
}

}  // namespace headrace::cuda
