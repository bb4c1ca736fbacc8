// FP8 decode: attention of few rows over an FP8 pool on Hopper, meant to be memory-bound. Eight warps of a CTA process
// a work tile, KV tile after KV tile. Four compute the scores and weights of a quarter of the keys each. The other four
// accumulate a quarter of V's columns each over all keys, up to two tiles behind. Two more warps load FP8 tiles by TMA;
// the consumers dequantise them in registers. Keys, and columns of V, are the M of mma.sync; the few queries are its N.
// All operands are half floats: they represent FP8 exactly, and one instruction makes two. bfloat16 queries become half
// floats too, each row times a power of two. Every sum has the order of fmha.cuh, so batch-invariant mode has its bits.
// Source: Dao et al. 2023, Flash-Decoding.
#pragma once
#include "headrace/ops/cuda/arch/pdl.cuh"
#include "headrace/ops/cuda/attention/sm90/decode_fp8/fp8_decode_load.cuh"
#include "headrace/ops/cuda/attention/sm90/decode_fp8/fp8_decode_values.cuh"

namespace headrace::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <class S>
__device__ inline void init_fp8_decode(Fp8DecodeControl<S>& control) {
  const auto init = [](uint64_t& barrier, int arrivals) { barrier_init(shared_address(&barrier), arrivals); };
  for (int i = 0; i < S::kKeyStages; ++i) init(control.keys_full[i], 1), init(control.keys_empty[i], S::kWorkers / 2);
  for (int i = 0; i < S::kValueStages; ++i)
    init(control.values_full[i], 1), init(control.values_empty[i], S::kWorkers / 2);
  for (int i = 0; i < 2; ++i)
    init(control.weights_ready[i], S::kWorkers / 2), init(control.weights_taken[i], S::kWorkers / 2);
  for (int i = 0; i < Fp8DecodeControl<S>::kPieces; ++i)
    init(control.work_full[i], 32), init(control.work_empty[i], S::kWorkers + 32);
  fence_barrier_init();
}

template <class S>
__device__ inline void fp8_decode_block(const AttentionCall& call, char* shared) {
  static_assert(sizeof(Fp8DecodeControl<S>) <= S::kControlBytes);
  auto& control = *reinterpret_cast<Fp8DecodeControl<S>*>(shared + S::kControlAt);
  const int warp = static_cast<int>(uniform(threadIdx.x / 32)), lane = threadIdx.x % 32;
  if (threadIdx.x == 0) init_fp8_decode(control);
  if (!call.plan.stands) pdl_wait();
  __syncthreads();
  if (warp >= 2 * S::kParts) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(S::kProducerRegisters));
    if (warp < 2 * S::kParts + 2) produce_fp8_decode<S>(call, control, shared, warp > 2 * S::kParts, lane);
  } else if (warp < S::kParts) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(S::kScorerRegisters));
    pdl_wait();
    pdl_launch_dependents();
    Fp8DecodeScorer<S>(call, shared, warp, lane).run();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(S::kAdderRegisters));
    pdl_wait();
    pdl_launch_dependents();
    Fp8DecodeAdder<S>(call, shared, warp - S::kParts, lane).run();
  }
}

#endif

template <class S>
__global__ void __launch_bounds__(S::kThreads, S::kBlocksOfRegisters)
    attend_codes(const __grid_constant__ AttentionCall call) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) char shared[];
  fp8_decode_block<S>(call, shared);
#endif
}

template <class T, int kDim, int kOctets, int kResident>
void launch_fp8_decode(const AttentionCall& call, const Stream& stream) {
  using S = Fp8DecodeShape<T, kDim, kOctets, kResident>;
  launch_pdl(stream, attend_codes<S>, dim3(static_cast<unsigned>(call.blocks)), dim3(S::kThreads), S::kSharedBytes,
             call, "paged_attention");
}

template <class T, int kDim>
void fp8_decode(const AttentionCall& call, const Stream& stream) {
  static_assert(kFp8DecodeRows == 16);
  const bool few = call.plan.slot_rows <= 8;
  if (call.fp8_decode_resident == 1)
    return (few ? launch_fp8_decode<T, kDim, 1, 1> : launch_fp8_decode<T, kDim, 2, 1>)(call, stream);
  (few ? launch_fp8_decode<T, kDim, 1, 2> : launch_fp8_decode<T, kDim, 2, 2>)(call, stream);
}

}  // namespace headrace::cuda
