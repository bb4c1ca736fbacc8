// Fused MoE for small batches: gate and up, down, and the weighted sum in one kernel. Tiles are those of
// grouped_gemm.cuh with one slot each, and so are their bits. CTAs take tiles of gate and up first and go on with down.
// The weights of down are loaded while other CTAs still compute the slot's other channels. The CTA that completes a
// token's results of some channels adds them up. So memory is busy with hardly a pause from the first weights to the
// last.
#pragma once
#include "headrace/ops/cuda/moe/sm90/fused_moe_small_batch.h"
#include "headrace/ops/cuda/moe/sm90/grouped_gemm.cuh"

namespace headrace::cuda::grouped {

struct FusedMoeParams {
  Params gate_up, down;
  ExpertSum sum;
  // All zero between kernels. inner_made: finished tiles of gate and up for each slot. results_made: finished results
  // for each token and tile of down. ended: CTAs that have ended.
  uint32_t *inner_made, *results_made, *ended;
};

template <class S>
struct AtOnce {
  using T = typename S::Element;

  struct Memory {  // of the consumers, in shared memory
    ExpertSum::Choice choices[kMostSlotsAtOnce];
    int of_token[kMostSlotsAtOnce];  // choices of a token that exist; a padding token has none
    int before;                      // value of a counter before this CTA's increment
  };

  const FusedMoeParams& p;
  Shared<S> shared;
  Memory& memory;

  // Calls f(slot's tile, column tile) for each tile of this CTA, in the order of all.
  template <class F>
  __device__ static void for_tiles(const Params& of, int first_block, const F& f) {
    const int tiles = of.product.groups.slots * of.column_tiles, blocks = static_cast<int>(gridDim.x);
    // Continues where the tiles before these ended, so that every CTA has as many as any other, or one less.
    for (int t = (static_cast<int>(blockIdx.x) + blocks - first_block % blocks) % blocks; t < tiles; t += blocks) {
      const ExpertTile tile = of.product.groups.tile(t / of.column_tiles);
      if (tile.count > 0) f(tile, t % of.column_tiles);
    }
  }
  __device__ int tiles_before_down() const { return p.gate_up.product.groups.slots * p.gate_up.column_tiles; }

  __device__ void produce(int thread) const {
    PipelineState<S::kStages> at;
    const Producer<S, true> gate_up{p.gate_up, shared, thread};
    const Producer<S, false> down{p.down, shared, thread};
    for_tiles(p.gate_up, 0,
              [&](const ExpertTile& tile, int columns) { gate_up.fill(tile, columns, at, NobodyWaits()); });
    for_tiles(p.down, tiles_before_down(), [&](const ExpertTile& tile, int columns) {
      down.fill(tile, columns, at, [&] { wait_for_inner(tile.begin); });
    });
  }

  __device__ void consume(int thread) const {
    PipelineState<S::kStages> at;
    read_choices(thread);
    const Consumer<S, true> gate_up{p.gate_up, shared, 0, thread / 32, thread % 32};
    const Consumer<S, false> down{p.down, shared, 0, thread / 32, thread % 32};
    for_tiles(p.gate_up, 0, [&](const ExpertTile& tile, int columns) {
      gate_up.take(tile, columns, at);
      publish_inner(tile.begin, thread);
    });
    for_tiles(p.down, tiles_before_down(), [&](const ExpertTile& tile, int columns) {
      down.take(tile, columns, at);
      const int token = tile.begin / p.sum.k;
      if (publish_result(token, columns, thread) == memory.of_token[token]) add_up(token, columns, thread);
    });
    for (int i = blockIdx.x; i < p.sum.tokens * p.down.column_tiles; i += gridDim.x) {
      const int token = i / p.down.column_tiles;
      if (memory.of_token[token] == 0) add_up(token, i % p.down.column_tiles, thread);
    }
    leave(thread);
  }

 private:
  static constexpr int kConsumers = 128, kBarrier = 1;

  // Makes what all consumer threads have written visible to CTAs that wait for the slot.
  __device__ void publish_inner(int slot, int thread) const {
    named_barrier<kBarrier, kConsumers>();
    if (thread == 0) asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(p.inner_made + slot) : "memory");
  }
  // Publishes a result likewise. Returns, to all threads, how many of the token's results exist for these channels.
  __device__ int publish_result(int token, int columns, int thread) const {
    named_barrier<kBarrier, kConsumers>();
    if (thread == 0) {
      asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
                   : "=r"(memory.before)
                   : "l"(p.results_made + token * p.down.column_tiles + columns)
                   : "memory");
    }
    named_barrier<kBarrier, kConsumers>();
    return memory.before + 1;
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
  // Reads them while the first weights are in flight.
  __device__ void read_choices(int thread) const {
    for (int slot = thread; slot < p.sum.tokens * p.sum.k; slot += kConsumers) {
      memory.choices[slot] = p.sum.choice(slot);
    }
    named_barrier<kBarrier, kConsumers>();
    if (thread < p.sum.tokens) {
      int there = 0;
      for (int j = 0; j < p.sum.k; ++j) there += memory.choices[thread * p.sum.k + j].there ? 1 : 0;
      memory.of_token[thread] = there;
    }
    named_barrier<kBarrier, kConsumers>();
  }
  // One thread for each 8 channels.
  __device__ void add_up(int token, int columns, int thread) const {
    const int d = columns * kColumns<S, false> + thread * kVec8;
    if (thread >= kColumns<S, false> / kVec8 || d >= p.sum.hidden) return;
    p.sum.template write_piece<T>(token, d, [&](int slot) { return memory.choices[slot]; });
  }
  // The last CTA of all sets the counters back to zero. No CTA waits for this, and a CTA that is counted has read all
  // that it needs from the others.
  __device__ void leave(int thread) const {
    named_barrier<kBarrier, kConsumers>();
    if (thread == 0) memory.before = static_cast<int>(atomicAdd(p.ended, 1));
    named_barrier<kBarrier, kConsumers>();
    if (memory.before + 1 < static_cast<int>(gridDim.x)) return;
    for (int i = thread; i < p.gate_up.product.groups.slots; i += kConsumers) p.inner_made[i] = 0;
    for (int i = thread; i < p.sum.tokens * p.down.column_tiles; i += kConsumers) p.results_made[i] = 0;
    if (thread == 0) *p.ended = 0;
  }
};

// Prefetches, before any wait: the TMA descriptors of the weights, and a share of the table of their addresses.
__device__ inline void ask_for_constants(const FusedMoeParams& p) {
  if (threadIdx.x == 0) {
    for (const CUtensorMap* map : {&p.gate_up.weights, &p.down.weights})
      asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
  }
  constexpr int kLine = 128;
  const int bytes = p.gate_up.product.groups.num_experts * 3 * static_cast<int>(sizeof(int64_t));
  const auto* table = reinterpret_cast<const char*>(p.gate_up.product.addresses);
  const int at = static_cast<int>(threadIdx.x * gridDim.x + blockIdx.x) * kLine;
  if (at < bytes) asm volatile("prefetch.global.L2 [%0];" ::"l"(table + at));
}

template <class S>
__global__ void __launch_bounds__(S::kThreads, 1) run_experts(const __grid_constant__ FusedMoeParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) char memory[];
  __shared__ typename AtOnce<S>::Memory of_consumers;
  const Shared<S> shared = begin_ring<S>(memory);
  ask_for_constants(p);
  __syncthreads();
  pdl_wait();
  pdl_launch_dependents();
  const AtOnce<S> experts{p, shared, of_consumers};
  const int group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0), thread = threadIdx.x % 128;
  group == 0 ? experts.produce(thread) : experts.consume(thread);
#endif
}

template <class T>
void fused_moe_small_batch_of(const GroupedGemm& gate_up, const GroupedGemm& down, const ExpertSum& sum,
                              const Stream& stream, GridRuns runs) {
  using S = OneSlotShape<T>;
  static_assert(kColumns<S, false> == 128);
  FusedMoeParams p{.gate_up = params_of<S>(gate_up), .down = params_of<S>(down), .sum = sum};
  p.inner_made = stream.counters, p.results_made = p.inner_made + gate_up.groups.slots;
  p.ended = p.results_made + sum.tokens * p.down.column_tiles;
  launch_pdl(stream, run_experts<S>, dim3(static_cast<unsigned>(stream.num_sms)), dim3(S::kThreads), S::kSharedBytes, p,
             "expert_mlp", {.runs = runs});
}

}  // namespace headrace::cuda::grouped
