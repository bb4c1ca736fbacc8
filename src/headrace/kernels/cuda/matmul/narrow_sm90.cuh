// Products of 3 to 64 rows on Hopper's warpgroup instructions: bound by the weights' bytes, which are read once.
//
// The rows of the weights are the 64 rows of a product, and the rows of x its columns. A cluster takes tiles in turn:
// 64 rows of one weight, 128 of it, or 64 of each of two that are combined; each of its blocks takes a part of `in` of
// every tile. One thread fills a ring of stages of 16 KB of weights and the slices of x that they meet, with weights
// before it waits for the kernel that makes x: they are constants. One warpgroup multiplies. A block's sums go to the
// blocks of its cluster, each of which adds up its share of the tile in the order of the blocks and writes it: the same
// bits in every run. In strict mode a block has some of the parts of matmul_parts.cuh, one after the other, whose sums
// are handed on by themselves; a block alone adds them up as they come.
#pragma once
#include "headrace/kernels/cuda/matmul/narrow_work.cuh"
#include "headrace/kernels/cuda/matmul/shared_piece.cuh"
#include "headrace/kernels/cuda/primitives/cluster.cuh"
#include "headrace/kernels/cuda/primitives/launch.cuh"
#include "headrace/kernels/cuda/primitives/wgmma.cuh"
#include "headrace/kernels/cuda/primitives/wgmma_widths.cuh"

namespace headrace::cuda::narrow {

template <class S>
struct Producer {
  const Params& p;
  Shared<S> shared;

  __device__ void run() const {
    int early = 0;
    for (Work<S> ahead(p); early < p.stages && ahead.inside(); ++early, ahead.next()) fill_weights(ahead, early);
    wait_for_previous();
    Place at{p.stages};
    for (Work<S> work(p); work.inside(); work.next(), at.next()) {
      if (early > 0) {
        --early;
      } else {
        barrier_wait(shared.empty(at.stage), at.phase ^ 1);
        fill_weights(work, at.stage);
      }
#pragma unroll
      for (int c = 0; c < S::kChunks; ++c) {
        copy_box(shared.x(at.stage) + c * S::kXBytes, p.x, work.element(c), 0, 0, 0, shared.full(at.stage));
      }
    }
  }

 private:
  // What lies past the ends comes as zeros.
  __device__ void fill_weights(const Work<S>& work, int stage) const {
    const uint32_t full = shared.full(stage);
    barrier_expect(full, S::kStageBytes);
#pragma unroll
    for (int c = 0; c < S::kChunks; ++c) {
#pragma unroll
      for (int b = 0; b < S::kBoxes; ++b) {
        const int row = p.combined ? work.tile : work.tile * S::kBoxes + b;
        copy_box(shared.stage(stage) + (c * S::kBoxes + b) * kBoxBytes, p.weights[p.combined ? b : 0], work.element(c),
                 row * NarrowPlan::kBoxRows, 0, 0, full, kReadOnce);
      }
    }
  }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// A unit of a tile's sums: a warp's 16 rows of each box, and 8 columns. Unit u, of warp u % 4 and columns u / 4, is
// added up by block u % blocks, as the u / blocks-th of its share.
template <class S>
struct Unit {
  using Sums = float[S::kBoxes][4];
  using T = typename S::Element;
  const Params& p;
  int first_row, first_token, lane;
  uint32_t residual[S::kBoxes][2] = {};
  float bias[S::kBoxes][2] = {};

  __device__ Unit(const Params& params, int tile, int unit)
      : p(params),
        first_row(tile * (p.combined ? 1 : S::kBoxes) * NarrowPlan::kBoxRows + unit % kWarps * 16),
        first_token(unit / kWarps * 8),
        lane(static_cast<int>(threadIdx.x) % 32) {}

  // What is added to the results: asked for before they are there.
  __device__ void ask() {
    if (p.result.residual.data != nullptr) {
      for_halves([&](int b, int h) {
        if (inside(b, h)) residual[b][h] = __ldcg(word(p.result.residual, b, h));
      });
    }
    if (p.result.bias != nullptr) {
      for_halves([&](int b, int h) {
        const int row = first_row + b * NarrowPlan::kBoxRows + h * 8 + lane / 4;
        if (row < p.out) bias[b][h] = load(p.result.bias, p.result.bias_type, row);
      });
    }
  }
  // A lane has rows lane / 4 and 8 behind it, of columns 2 (lane % 4) and the next.
  __device__ void write(Sums& sums) const {
    if (p.combined) {
#pragma unroll
      for (int j = 0; j < 4; ++j) sums[0][j] = quick_silu(sums[0][j]) * sums[S::kBoxes - 1][j];
    }
    for_halves([&](int b, int h) {
      const float2 also = unpack2<T>(movmatrix(residual[b][h]));
      float low = sums[b][h * 2], high = sums[b][h * 2 + 1];
      if (!p.combined) low = low + bias[b][h] + also.x, high = high + bias[b][h] + also.y;  // -0 of two stays -0
      if (b > 0 && p.combined) return;
      if (p.result.y.type == DType::kF32) {
        store(b, h, 0, low), store(b, h, 1, high);
      } else {
        const uint32_t both = movmatrix(pack2<T>(low, high));
        if (inside(b, h)) *word(p.result.y, b, h) = both;
      }
    });
  }

 private:
  template <class F>
  __device__ static void for_halves(const F& f) {
#pragma unroll
    for (int b = 0; b < S::kBoxes; ++b) f(b, 0), f(b, 1);
  }
  // Two neighbouring rows of the weights for one row of x, as a fragment turned round has them.
  __device__ int row(int b, int h) const { return first_row + b * NarrowPlan::kBoxRows + h * 8 + lane % 4 * 2; }
  __device__ bool inside(int b, int h) const { return row(b, h) < p.out && first_token + lane / 4 < p.rows; }
  __device__ uint32_t* word(const Rows& rows, int b, int h) const {
    return reinterpret_cast<uint32_t*>(static_cast<T*>(rows.data) + rows.at(first_token + lane / 4) + row(b, h));
  }
  __device__ void store(int b, int h, int next, float x) const {
    const int row = first_row + b * NarrowPlan::kBoxRows + h * 8 + lane / 4, token = first_token + lane % 4 * 2 + next;
    if (row < p.out && token < p.rows) static_cast<float*>(p.result.y.data)[p.result.y.at(token) + row] = x;
  }
};

template <class S>
struct Consumer {
  using T = typename S::Element;
  using Sums = float[S::kBoxes][S::kTiles][4];
  const Params& p;
  Shared<S> shared;
  int warp, lane;

  __device__ void run() const {
    Place at{p.stages};
    uint32_t phase = 0;
    for (Work<S> work(p); work.inside(); phase ^= 1) {
      if (!alone() && threadIdx.x == 0) {
        barrier_expect(shared.sent(), share(work.rank) * summands() * S::kBoxes * NarrowPlan::kUnitBytes);
      }
      Sums sums;
      if constexpr (S::kParts) {
        multiply_parts(work, at, phase, sums);
      } else {
        multiply(work, at, sums);
      }
      if (!S::kParts || alone()) {
        wait_for_room(work, phase);
        send_all(work.rank, sums);
      }
      join(work, phase);
      work.next_tile();
      if (work.inside()) give_room();
    }
  }

 private:
  __device__ bool alone() const { return p.blocks == 1; }
  __device__ int share(int rank) const { return p.share - (rank < p.whole_shares ? 0 : 1); }
  // Sums that are added up to a result's.
  __device__ int summands() const { return alone() ? 1 : p.blocks * p.parts; }
  // Until the others' memory is free.
  __device__ void wait_for_room(const Work<S>& work, uint32_t phase) const {
    if (alone()) return;
    if (work.first) {
      cluster_wait_acquire();  // the others have begun
    } else {
      barrier_wait_sent(shared.taken(), phase ^ 1);
    }
  }

  static __device__ void hold_all(Sums& sums) {
#pragma unroll
    for (int b = 0; b < S::kBoxes; ++b) hold(sums[b]);
  }
  // One chunk of a stage.
  __device__ void multiply_chunk(int stage, int chunk, Sums& sums, Add first) const {
    const uint32_t w = uniform(operand_low(shared.stage(stage) + chunk * S::kBoxes * kBoxBytes, 0));
    const uint32_t x = uniform(operand_low(shared.x(stage) + chunk * S::kXBytes, 0));
#pragma unroll
    for (int k = 0; k < NarrowPlan::kChunk / 16; ++k) {
#pragma unroll
      for (int b = 0; b < S::kBoxes; ++b) {
        wgmma_shared<T>(sums[b], operand(w + (b * kBoxBytes >> 4) + k * 2), operand(x + k * 2),
                        k == 0 ? first : Add::kYes);
      }
    }
  }
  __device__ void multiply(const Work<S>& work, Place& at, Sums& sums) const {
    int before = 0;
    for (int step = 0; step < work.steps; ++step) {
      barrier_wait(shared.full(at.stage), at.phase);
      wgmma_fence();
#pragma unroll
      for (int c = 0; c < S::kChunks; ++c) {
        multiply_chunk(at.stage, c, sums, c + step == 0 ? Add::kNo : Add::kYes);
      }
      wgmma_commit();
      if (step > 0) {
        wgmma_wait<1>();
        release(before);
      }
      before = at.stage;
      at.next();
    }
    wgmma_wait<0>();
    hold_all(sums);
    release(before);
  }

  // A chunk of a stage that is next, and the stage before it, which is released when all of it is multiplied.
  struct Chunk {
    Place& at;
    int chunk = 0, before = -1;
    __device__ void next() {
      if (++chunk < S::kChunks) return;
      chunk = 0, before = at.stage;
      at.next();
    }
  };
  __device__ void multiply_part(Chunk& next, int count, Sums& sums) const {
    for (int pass = 0; pass < count; ++pass) {
      if (next.chunk == 0) barrier_wait(shared.full(next.at.stage), next.at.phase);
      wgmma_fence();
      multiply_chunk(next.at.stage, next.chunk, sums, pass == 0 ? Add::kNo : Add::kYes);
      wgmma_commit();
      if (next.chunk == 0 && next.before >= 0) {
        wgmma_wait<1>();
        release(next.before);
      }
      next.next();
    }
  }
  // All of the block's parts: of one that is alone the totals, else each is sent. A few at a time, since the products
  // of one do not wait for those of another.
  __device__ void multiply_parts(const Work<S>& work, Place& at, uint32_t phase, Sums& totals) const {
    constexpr int kTogether = 2;
    Chunk next{at};
    for_all([&](int b, int i, int j) { totals[b][i][j] = 0; });
    for (PartWalk walk(p, work.rank); walk.part < walk.end; walk.part += kTogether) {
      Sums sums[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) multiply_part(next, walk.count_of(walk.part + i), sums[i]);
      wgmma_wait<0>();
#pragma unroll
      for (int i = 0; i < kTogether; ++i) hold_all(sums[i]);
      if (!alone() && walk.part == work.rank * p.parts) wait_for_room(work, phase);
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (alone()) {
          for_all([&](int b, int t, int j) { totals[b][t][j] += sums[i][b][t][j]; });
        } else {
          send_all(walk.part + i, sums[i]);
        }
      }
    }
    if (next.chunk > 0) next.before = at.stage, at.next();  // the rest of it is zeros
    release(next.before);
  }
  template <class F>
  static __device__ void for_all(const F& f) {
#pragma unroll
    for (int i = 0; i < S::kBoxes * S::kTiles * 4; ++i) f(i / (S::kTiles * 4), i / 4 % S::kTiles, i % 4);
  }
  __device__ static uint32_t uniform(uint32_t x) { return __shfl_sync(0xffffffffu, x, 0); }
  __device__ void release(int stage) const {
    if (lane == 0) barrier_arrive(shared.empty(stage));
  }

  // Where one of the summands of a unit of a share lies, box by box.
  __device__ uint32_t slot(int from, int of_share) const {
    return shared.join() + ((from * p.share + of_share) * S::kBoxes * 32 + lane) * 16;
  }
  __device__ void send_all(int from, const Sums& sums) const {
    int of_share = 0, to = warp;
#pragma unroll
    for (int i = 0; i < S::kTiles; ++i, to += kWarps) {
      for (; to >= p.blocks; to -= p.blocks) ++of_share;
      const uint32_t here = slot(from, of_share);
#pragma unroll
      for (int b = 0; b < S::kBoxes; ++b) {
        const float(&v)[4] = sums[b][i];
        const float4 four = make_float4(v[0], v[1], v[2], v[3]);
        if (alone()) {
          store_piece(here + b * NarrowPlan::kUnitBytes, reinterpret_cast<const uint4&>(four));
        } else {
          send(address_in(here + b * NarrowPlan::kUnitBytes, to), address_in(shared.sent(), to), four);
        }
      }
    }
  }
  // Adds up this block's share, in the order of the blocks and of their parts.
  __device__ void join(const Work<S>& work, uint32_t phase) const {
    const int count = share(work.rank);
    bool waited = false;
    for (int i = warp; i < count || !waited; i += kWarps) {
      Unit<S> unit(p, work.tile, i * p.blocks + work.rank);
      if (i < count) unit.ask();
      if (!waited) wait_for_sums(phase);
      waited = true;
      if (i >= count) break;
      typename Unit<S>::Sums sums = {};
      for (int from = 0; from < summands(); ++from) {
#pragma unroll
        for (int b = 0; b < S::kBoxes; ++b) {
          const uint4 v = load_piece(slot(from, i) + b * NarrowPlan::kUnitBytes);
          sums[b][0] += __uint_as_float(v.x), sums[b][1] += __uint_as_float(v.y);
          sums[b][2] += __uint_as_float(v.z), sums[b][3] += __uint_as_float(v.w);
        }
      }
      unit.write(sums);
    }
  }
  __device__ void wait_for_sums(uint32_t phase) const {
    alone() ? named_barrier<1, kMultipliers>() : barrier_wait_sent(shared.sent(), phase);
  }
  // The sums of this tile are read: the next ones may come.
  __device__ void give_room() const {
    named_barrier<1, kMultipliers>();
    if (!alone() && threadIdx.x < static_cast<unsigned>(p.blocks))
      barrier_arrive_having_read_in(address_in(shared.taken(), threadIdx.x));
  }
};
#endif

template <class S>
__global__ void __launch_bounds__(kThreads, S::kParts ? 1 : 2) multiply(const __grid_constant__ Params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) char memory[];
  const Shared<S> shared{shared_address(memory), p.stages, p.join_bytes};
  if (threadIdx.x == 0) {
#pragma unroll 1
    for (int stage = 0; stage < p.stages; ++stage) {
      barrier_init(shared.full(stage), 1);
      barrier_init(shared.empty(stage), kWarps);
    }
    barrier_init(shared.sent(), 1);
    barrier_init(shared.taken(), p.blocks);
    fence_barrier_init();
  }
  __syncthreads();
  let_next_start();
  if (p.blocks > 1) cluster_arrive_release();
  if (threadIdx.x >= kMultipliers) {
    if (threadIdx.x == kMultipliers) Producer<S>{p, shared}.run();
    return;
  }
  wait_for_previous();
  Consumer<S>{p, shared, static_cast<int>(threadIdx.x) / 32, static_cast<int>(threadIdx.x) % 32}.run();
#endif
}

template <class S>
void launch(const Params& p, const NarrowPlan& plan, const Stream& stream) {
  launch_early(stream, multiply<S>, dim3(static_cast<unsigned>(plan.clusters * plan.blocks)), dim3(kThreads),
               static_cast<size_t>(plan.shared_bytes()), p, "narrow_matmul", static_cast<unsigned>(plan.blocks));
}

template <class T, int kBoxes, NarrowPlan::Order kOrder>
void launch_widths(const Params& p, const NarrowPlan& plan, const Stream& stream) {
  switch (plan.width) {
    case 16: return launch<Shape<T, 16, kBoxes, kOrder>>(p, plan, stream);
    case 32: return launch<Shape<T, 32, kBoxes, kOrder>>(p, plan, stream);
    default: return launch<Shape<T, 64, kBoxes, kOrder>>(p, plan, stream);
  }
}

template <class T, NarrowPlan::Order kOrder>
void launch_boxes(const Params& p, const NarrowPlan& plan, const Stream& stream) {
  plan.boxes == 2 ? launch_widths<T, 2, kOrder>(p, plan, stream) : launch_widths<T, 1, kOrder>(p, plan, stream);
}

template <class T>
void launch_of(const Params& p, const NarrowPlan& plan, const Stream& stream) {
  using Order = NarrowPlan::Order;
  plan.order == Order::kParts ? launch_boxes<T, Order::kParts>(p, plan, stream)
                              : launch_boxes<T, Order::kRanges>(p, plan, stream);
}

}  // namespace headrace::cuda::narrow
