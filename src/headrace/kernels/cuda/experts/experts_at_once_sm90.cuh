// The experts of a few tokens in one kernel: gate and up, down, and the weighted sum. Tiles are those of
// grouped_matmul_sm90.cuh, of one slot each, and so are their bits. Blocks take gate and up first and go on with down:
// its weights come while the slot's other channels are still made, and who makes the last of a token's results of some
// channels adds them up. So memory is asked without a pause from the first weights to the last.
#pragma once
#include "headrace/kernels/cuda/experts/experts_at_once_sm90.h"
#include "headrace/kernels/cuda/experts/grouped_matmul_sm90.cuh"

namespace headrace::cuda::grouped {

struct AtOnceParams {
  Params gate_up, down;
  ExpertSum sum;
  // All zero between kernels: of each slot the tiles of gate and up that are made; of each token and tile of down the
  // results that are there; blocks that have ended.
  uint32_t *inner_made, *results_made, *ended;
};

template <class S>
struct AtOnce {
  using T = typename S::Element;
  const AtOnceParams& p;
  Shared<S> shared;

  // f(slot's tile, column tile) for each of this block's, in the order of all.
  template <class F>
  __device__ static void for_tiles(const Params& of, int first_block, const F& f) {
    const int tiles = of.product.groups.slots * of.column_tiles, blocks = static_cast<int>(gridDim.x);
    // Goes on where the tiles before these ended, so that every block has as many as any other, or one less.
    for (int t = (static_cast<int>(blockIdx.x) + blocks - first_block % blocks) % blocks; t < tiles; t += blocks) {
      const ExpertTile tile = of.product.groups.tile(t / of.column_tiles);
      if (tile.count > 0) f(tile, t % of.column_tiles);
    }
  }
  __device__ int tiles_before_down() const { return p.gate_up.product.groups.slots * p.gate_up.column_tiles; }

  __device__ void produce(int thread) const {
    RingPlace<S::kStages> at;
    const Producer<S, true> gate_up{p.gate_up, shared, thread};
    const Producer<S, false> down{p.down, shared, thread};
    for_tiles(p.gate_up, 0,
              [&](const ExpertTile& tile, int column_tile) { gate_up.fill(tile, column_tile, at, NobodyWaits()); });
    for_tiles(p.down, tiles_before_down(), [&](const ExpertTile& tile, int column_tile) {
      down.fill(tile, column_tile, at, [&] { wait_for_inner(tile.begin); });
    });
  }

  __device__ void consume(int thread) const {
    RingPlace<S::kStages> at;
    __shared__ int choices[kMostTokensAtOnce];  // of each token; one of padding has none
    if (thread < p.sum.tokens) choices[thread] = choices_of(thread);
    const Consumer<S, true> gate_up{p.gate_up, shared, 0, thread / 32, thread % 32};
    const Consumer<S, false> down{p.down, shared, 0, thread / 32, thread % 32};
    for_tiles(p.gate_up, 0, [&](const ExpertTile& tile, int column_tile) {
      gate_up.take(tile, column_tile, at);
      publish(p.inner_made + tile.begin, thread);
    });
    for_tiles(p.down, tiles_before_down(), [&](const ExpertTile& tile, int column_tile) {
      down.take(tile, column_tile, at);
      const int token = tile.begin / p.sum.k;
      const int made = publish(p.results_made + token * p.down.column_tiles + column_tile, thread);
      if (made == choices[token]) add_up(token, column_tile, thread);
    });
    named_barrier<kBarrier, kConsumers>();
    for (int i = blockIdx.x; i < p.sum.tokens * p.down.column_tiles; i += gridDim.x) {
      if (choices[i / p.down.column_tiles] == 0) add_up(i / p.down.column_tiles, i % p.down.column_tiles, thread);
    }
    leave(thread);
  }

 private:
  static constexpr int kConsumers = 128, kBarrier = 1;

  // Returns, to all threads, what the counter came to with what they have written.
  __device__ int publish(uint32_t* counter, int thread) const {
    __shared__ uint32_t now;
    named_barrier<kBarrier, kConsumers>();
    if (thread == 0) {
      __threadfence();
      now = atomicAdd(counter, 1) + 1;
      __threadfence();
    }
    named_barrier<kBarrier, kConsumers>();
    return static_cast<int>(now);
  }
  __device__ void wait_for_inner(int slot) const {
    if (threadIdx.x % 32 == 0) {
      uint32_t made;
      do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(made) : "l"(p.inner_made + slot) : "memory");
      } while (made < static_cast<uint32_t>(p.gate_up.column_tiles));
    }
    __syncwarp();
  }
  __device__ int choices_of(int token) const {
    int count = 0;
#pragma unroll 8
    for (int j = 0; j < p.sum.k; ++j) count += __ldcg(p.sum.experts + token * p.sum.k + j) != kNoExpert ? 1 : 0;
    return count;
  }
  // A channel each.
  __device__ void add_up(int token, int column_tile, int thread) const {
    const int d = column_tile * kColumns<S, false> + thread;
    if (d < p.sum.hidden) p.sum.template write<T>(token, d);
  }
  // The last block of all leaves the counters as they were found.
  __device__ void leave(int thread) const {
    const bool last = publish(p.ended, thread) == static_cast<int>(gridDim.x);
    if (!last) return;
    for (int i = thread; i < p.gate_up.product.groups.slots; i += kConsumers) p.inner_made[i] = 0;
    for (int i = thread; i < p.sum.tokens * p.down.column_tiles; i += kConsumers) p.results_made[i] = 0;
    if (thread == 0) *p.ended = 0;
  }
};

template <class S>
__global__ void __launch_bounds__(S::kThreads, 1) run_experts(const __grid_constant__ AtOnceParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) char memory[];
  const AtOnce<S> experts{p, begin_ring<S>(memory)};
  __syncthreads();
  wait_for_previous();
  let_next_start();
  const int group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0), thread = threadIdx.x % 128;
  group == 0 ? experts.produce(thread) : experts.consume(thread);
#endif
}

template <class T>
void experts_at_once_of(const GroupedMatmul& gate_up, const GroupedMatmul& down, const ExpertSum& sum,
                        const Stream& stream, GridRuns runs) {
  using S = FewShape<T>;
  static_assert(kColumns<S, false> == 128);
  AtOnceParams p{.gate_up = params_of<S>(gate_up), .down = params_of<S>(down), .sum = sum};
  p.inner_made = stream.counters, p.results_made = p.inner_made + gate_up.groups.slots;
  p.ended = p.results_made + sum.tokens * p.down.column_tiles;
  launch_early(stream, run_experts<S>, dim3(static_cast<unsigned>(stream.num_sms)), dim3(S::kThreads), S::kSharedBytes,
               p, "expert_mlp", 1, runs);
}

}  // namespace headrace::cuda::grouped
