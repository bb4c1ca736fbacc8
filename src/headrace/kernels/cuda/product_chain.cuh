// What the warps of a product chain agree on: which rows of which weights a block takes, in which order they come, and
// where they lie in shared memory.
#pragma once
#include "headrace/kernels/cuda/bulk_copy.cuh"
#include "headrace/kernels/cuda/matmul_parts.cuh"
#include "headrace/kernels/cuda/mma.cuh"
#include "headrace/kernels/cuda/product_chain.h"
#include "headrace/kernels/cuda/product_chain_plan.h"

namespace headrace::cuda::chain {

// One warp cannot ask for copies of a row each as fast as memory answers them.
constexpr int kWarps = ChainPlan::kWarps, kConsumers = kWarps * 32;
constexpr int kProducers = 4, kThreads = kConsumers + kProducers * 32;

struct Product {
  const char* weight;
  int64_t row_bytes;
  int end_row;  // of this and all products before it
  Result result;
};

struct Step {
  Rows x;
  const void* norm_weight;  // of x's type
  float eps, weight_offset;
  Product products[FusedLinearArgs::kMaxProducts];
  int in, slices;
  int units, units_more;  // of each block, and how many blocks have one more: rows of all products, or pairs of them
  bool combined;

  // Units of a tile of 16 rows of weights: rows, or eight of the first weight above eight of the second.
  __device__ int tile_units() const { return combined ? ChainPlan::kSlotRows : ChainPlan::kTileRows; }
};

struct Params {
  Step steps[ProductChain::kMost];
  int num_steps, rows;
  ChainPlan plan;
  uint32_t* barrier;  // of all blocks; its low bits are zero between two meetings
};

// Units of one step that this block takes.
struct Share {
  int begin, end;
  __device__ explicit Share(const Step& step)
      : begin(step.units * static_cast<int>(blockIdx.x) + min(static_cast<int>(blockIdx.x), step.units_more)),
        end(begin + step.units + (static_cast<int>(blockIdx.x) < step.units_more ? 1 : 0)) {}
  __device__ bool empty() const { return begin == end; }
};

// Rows of the lower (half 0) or upper slot of the tile that begins at `unit`; at most 0: there is none.
__device__ inline int slot_rows(const Step& step, int unit, int end, int half) {
  return min(ChainPlan::kSlotRows, end - unit - (step.combined ? 0 : half * ChainPlan::kSlotRows));
}

// Which product a row belongs to, and its row there.
struct Place {
  int product, row;
  __device__ Place(const Step& step, int unit) : product(0), row(unit) {
    if (step.combined) return;
    while (unit >= step.products[product].end_row) row = unit - step.products[product++].end_row;
  }
};

// One result of a group of tiles, and the thread that adds it up.
struct Output {
  int row, tile, tile_row;
  int unit;  // of the step

  __device__ Output(const Step& step, int begin, int index)
      : row(index / kGroupRows),
        tile(index / ChainPlan::kTileRows % ChainPlan::kGroupTiles),
        tile_row(index % ChainPlan::kTileRows),
        unit(begin + tile * step.tile_units() + tile_row) {}
  __device__ bool wanted(const Step& step, int end) const { return tile_row < step.tile_units() && unit < end; }

  static constexpr int kGroupRows = ChainPlan::kGroupTiles * ChainPlan::kTileRows;
};

// The bits of a residual's element: what needs them waits for memory, so that comes as late as possible.
__device__ inline uint32_t fresh_bits(const Rows& x, int64_t row, int64_t column) {
  const int64_t at = x.at(row) + column;
  if (x.type == DType::kF32) return __ldcg(static_cast<const unsigned*>(x.data) + at);
  return __ldcg(static_cast<const unsigned short*>(x.data) + at);
}

struct Shared {
  char *base, *x, *ring;
  float4* parts;

  __device__ Shared(const Params& p, char* memory)
      : base(memory),
        x(norm() + p.plan.norm_bytes()),
        ring(memory + p.plan.bytes_before_ring(p.rows)),
        parts(reinterpret_cast<float4*>(x + p.plan.x_bytes(p.rows))) {}
  __device__ uint32_t full(int slot) const { return shared_address(base) + slot * 16; }
  __device__ uint32_t empty(int slot) const { return full(slot) + 8; }
  __device__ float* squares() const { return reinterpret_cast<float*>(base + ChainPlan::kMostSlots * 16); }
  __device__ char* norm() const { return base + ChainPlan::kSmallBytes; }
  __device__ char* slot(int i) const { return ring + i * ChainPlan::kSlotBytes; }
};

// Where the next slot of the ring is, and in which of its two phases.
struct Ring {
  int slots, slot = 0;
  uint32_t phase = 0;
  __device__ void next() {
    if (++slot == slots) slot = 0, phase ^= 1;
  }
};

// Calls f(group, groups' end within the share) for every group of tiles.
template <class F>
__device__ inline void for_groups(const Step& step, const F& f) {
  const Share share(step);
  const int units = ChainPlan::kGroupTiles * step.tile_units();
  for (int unit = share.begin; unit < share.end; unit += units) f(unit, min(share.end, unit + units));
}

// One slot's rows of a slice, a lane for each.
__device__ inline void bring_slot(const Step& step, const Shared& shared, const Ring& ring, int unit, int half,
                                  int rows, int first, uint32_t bytes) {
  const int lane = threadIdx.x % 32;
  barrier_wait(shared.empty(ring.slot), ring.phase ^ 1);
  if (lane == 0) barrier_expect(shared.full(ring.slot), bytes * rows);
  __syncwarp();
  if (lane >= rows) return;
  const Place place(step, unit + (step.combined ? 0 : half * ChainPlan::kSlotRows) + lane);
  const Product& product = step.products[step.combined ? half : place.product];
  copy_bytes(shared_address(shared.slot(ring.slot)) + lane * ChainPlan::kSlotPitch,
             product.weight + place.row * product.row_bytes + first * 2, bytes, shared.full(ring.slot), kReadOnce);
}

// By the producers in turns, from the kernel's start to its end: weights wait for nobody, so they are brought while
// blocks meet.
__device__ inline void bring_weights(const Params& p, const Shared& shared) {
  Ring ring{p.plan.slots};
  int turn = (threadIdx.x - kConsumers) / 32;  // slots until this warp's next
  for (int s = 0; s < p.num_steps; ++s) {
    const Step& step = p.steps[s];
    for_groups(step, [&](int begin, int end) {
      for (int slice = 0; slice < step.slices; ++slice) {
        const int first = slice * ChainPlan::kSliceLen;
        const uint32_t bytes = min(ChainPlan::kSliceLen, step.in - first) * 2;
        for (int unit = begin; unit < end; unit += step.tile_units()) {
          for (int half = 0; half < 2; ++half) {
            const int rows = slot_rows(step, unit, end, half);
            if (rows <= 0) continue;
            if (turn == 0) bring_slot(step, shared, ring, unit, half, rows, first, bytes);
            turn = turn == 0 ? kProducers - 1 : turn - 1;
            ring.next();
          }
        }
      }
    });
  }
}

// All blocks of the grid, which run at once since they are launched so. Thread 0 of the consumers arrives and waits;
// the others meet it before and after. A meeting flips the counter's highest bit and leaves the others zero, so nothing
// is reset between launches.
struct Meeting {
  uint32_t* counter;
  uint32_t before;  // the highest bit, read when no block can have arrived

  __device__ void arrive() const {
    const uint32_t count = blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1) : 1u;
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(counter), "r"(count) : "memory");
  }
  __device__ static uint32_t read(const uint32_t* counter) {
    uint32_t value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
    return value;
  }
  __device__ void wait() {
    while (((read(counter) ^ before) & 0x80000000u) == 0) {
    }
    before ^= 0x80000000u;
  }
};

}  // namespace headrace::cuda::chain
