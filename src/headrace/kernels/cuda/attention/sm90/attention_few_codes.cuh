// Attention of few rows over a pool of FP8 on Hopper: memory is all that it should wait for. Eight warps of a block
// take a piece of work, tile of keys after tile. Four find the scores of a quarter of the keys each; the other four
// find the weights of all keys meanwhile, of the tile before, and add up a quarter of the values' elements each. Codes
// come by the copy engine and are unpacked in registers; keys, and elements of values, are the rows of `mma.sync` and
// queries, a few, its columns. All are half floats: they hold codes exactly, and an instruction makes two;
// queries of bfloat16 become such, too, a row times a power of two. Every sum has the Hopper kernel's order, so that
// strict mode has its bits. Source: Dao et al. 2023, Flash-Decoding.
#pragma once
#include "headrace/kernels/cuda/attention/sm90/attention_few_codes_values.cuh"
#include "headrace/kernels/cuda/primitives/launch.cuh"

namespace headrace::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <class S>
__device__ inline void init_few_codes(FewCodesControl<S>& control) {
  const auto init = [](uint64_t& barrier, int arrivals) { barrier_init(shared_address(&barrier), arrivals); };
  for (int i = 0; i < S::kParts * S::kKeyStages; ++i) init(control.keys_full[i / S::kKeyStages][i % S::kKeyStages], 1);
  for (int i = 0; i < S::kValueStages; ++i) init(control.values_full[i], S::kParts);
  for (int i = 0; i < FewCodesControl<S>::kPieces; ++i)
    init(control.work_full[i], 32), init(control.work_empty[i], S::kThreads);
  fence_barrier_init();
}

template <class S>
__device__ inline void attend_few_codes_block(const AttentionCall& call, char* shared) {
  static_assert(sizeof(FewCodesControl<S>) <= S::kControlBytes);
  auto& control = *reinterpret_cast<FewCodesControl<S>*>(shared + S::kControlAt);
  const int warp = static_cast<int>(uniform(threadIdx.x / 32)), lane = threadIdx.x % 32;
  if (threadIdx.x == 0) init_few_codes(control);
  if (!call.plan.stands) wait_for_previous();
  __syncthreads();
  if (warp >= S::kParts) {
    FewCodesAdder<S>(call, shared, warp - S::kParts, lane).run();
    return;
  }
  FewCodesPieces<S> pieces(control, call.p, call.plan, lane);
  if (warp == 0) pieces.ask_words(), pieces.publish();
  FewCodesScorer<S>(call, shared, warp, lane).run(pieces);
}

#endif

template <class S>
__global__ void __launch_bounds__(S::kThreads, S::kResident) attend_codes(const __grid_constant__ AttentionCall call) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) char shared[];
  attend_few_codes_block<S>(call, shared);
#endif
}

template <class T, int kDim, int kOctets>
void launch_few_codes(const AttentionCall& call, const Stream& stream) {
  using S = FewCodesShape<T, kDim, kOctets>;
  launch_early(stream, attend_codes<S>, dim3(static_cast<unsigned>(call.blocks)), dim3(S::kThreads), S::kSharedBytes,
               call, "paged_attention");
}

template <class T, int kDim>
void attend_few_codes(const AttentionCall& call, const Stream& stream) {
  static_assert(kFewCodesRows == 16);
  (call.plan.slot_rows <= 8 ? launch_few_codes<T, kDim, 1> : launch_few_codes<T, kDim, 2>)(call, stream);
}

}  // namespace headrace::cuda
