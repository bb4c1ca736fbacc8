// Products of 3 to 64 rows on Hopper's warpgroup instructions: bound by the weights' bytes, which are read once.
//
// The rows of x are the 64 rows of a product, and rows of the weights its columns, since a product may have any
// multiple of 8 columns: so a tile can be what gives each multiprocessor the same share of the weights. Clusters take
// tiles in turn: so many rows of a weight, or half of them of each of two that are combined. Each block of a cluster
// takes a part of `in` of every tile. Two threads fill a ring of stages, one of them with weights, before the kernel
// that makes x has ended, the other with the slices of x that they meet. One warpgroup multiplies. A block that is
// alone writes its sums; else they go to the blocks of its cluster, each of which adds up its share of the tile in the
// order of the blocks and writes it: the same bits in every run. In strict mode a block has some of the parts of
// matmul_parts.cuh, a group of neighbours after the other, whose sums are handed on by themselves; a block alone adds
// them up as they come.
#pragma once
#include "headrace/kernels/cuda/matmul/narrow_work.cuh"
#include "headrace/kernels/cuda/matmul/shared_piece.cuh"
#include "headrace/kernels/cuda/primitives/cluster.cuh"
#include "headrace/kernels/cuda/primitives/launch.cuh"
#include "headrace/kernels/cuda/primitives/wgmma_widths.cuh"

namespace headrace::cuda::narrow {

// Fills stages with the x or the weights of their chunks, with zeros past the ends. A thread for each: neither waits
// until the other's copies are asked for.
template <class S>
struct Producer {
  const Params& p;
  Shared shared;

  __device__ void fill_with_x() const {
    wait_for_previous();
    for_stages([&](const Work<S>& work, int stage) {
      barrier_expect(shared.full(stage), S::kChunks * p.x_bytes);
      copy<S::kChunks>(shared.x(stage), p.x, work.chunk, 0, p.x_bytes, shared.full(stage), kReadAgain);
    });
  }
  // Weights are constants: they come while the kernel before this one still makes x.
  __device__ void fill_with_weights() const {
    constexpr int kBytes = S::kWeightColumns * kRowBytes;
    for_stages([&](const Work<S>& work, int stage) {
      const uint32_t to = shared.weights<S>(stage), full = shared.full(stage);
      const int row = work.tile * S::kWeightColumns;
      barrier_expect(full, S::kChunks * S::kChunkBytes);
      if constexpr (S::kWeights == 1) {
        copy<S::kChunks>(to, p.weights[0], work.chunk, row, kBytes, full, kReadOnce);
      } else {  // both of a chunk side by side: the rows of one operand
#pragma unroll
        for (int i = 0; i < S::kChunks * S::kWeights; ++i) {
          copy<1>(to + i * kBytes, p.weights[i % S::kWeights], work.chunk + i / S::kWeights, row, kBytes, full,
                  kReadOnce);
        }
      }
    });
  }

 private:
  template <class F>
  __device__ void for_stages(const F& fill) const {
    Place at{p.stages};
    for (Work<S> work(p); work.inside(); work.next(), at.next()) {
      barrier_wait(shared.empty(at.stage), at.phase ^ 1);
      fill(work, at.stage);
    }
  }
  // Chunks that are neighbours, of `bytes` each.
  template <int kCount>
  __device__ void copy(uint32_t to, const CUtensorMap& map, int chunk, int row, int bytes, uint32_t full,
                       uint64_t policy) const {
    if (p.whole_chunks) return copy_box(to, map, 0, row, chunk, 0, full, policy);
#pragma unroll
    for (int c = 0; c < kCount; ++c) {
      copy_box(to + c * bytes, map, (chunk + c) * NarrowPlan::kChunk, row, 0, 0, full, policy);
    }
  }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// A unit of a tile's sums: a warp's 16 rows of x and 8 columns of each weight. Unit u, of warp u % warps and columns
// u / warps, is added up by block u % blocks, as the u / blocks-th of its share.
template <class S>
struct Unit {
  using Sums = float[S::kWeights][4];
  using T = typename S::Element;
  const Params& p;
  int row, column;  // a lane has this column and the next, of this row and 8 behind it
  uint32_t residual[2] = {};
  float bias[2] = {};

  __device__ Unit(const Params& params, int tile, int warp, int columns)
      : p(params),
        row(warp * 16 + static_cast<int>(threadIdx.x) % 32 / 4),
        column(tile * S::kWeightColumns + columns * 8 + static_cast<int>(threadIdx.x) % 4 * 2) {}

  // What is added to the results: asked for before they are there.
  __device__ void ask() {
    if (p.result.residual.data != nullptr) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (inside(h)) residual[h] = __ldcg(word(p.result.residual, h));
      }
    }
    if (p.result.bias != nullptr) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        if (column + c < p.out) bias[c] = load(p.result.bias, p.result.bias_type, column + c);
      }
    }
  }
  __device__ void write(Sums& sums) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float low = sums[0][h * 2], high = sums[0][h * 2 + 1];
      if constexpr (S::kWeights == 2) {
        low = quick_silu(low) * sums[1][h * 2], high = quick_silu(high) * sums[1][h * 2 + 1];
      } else {  // two that are combined have neither; -0 is to stay what it is
        const float2 also = unpack2<T>(residual[h]);
        low = low + bias[0] + also.x, high = high + bias[1] + also.y;
      }
      if (p.result.y.type == DType::kF32) {
        store(h, 0, low), store(h, 1, high);
      } else if (inside(h)) {
        *word(p.result.y, h) = pack2<T>(low, high);
      }
    }
  }

 private:
  __device__ bool inside(int h) const { return column < p.out && row + h * 8 < p.rows; }
  __device__ uint32_t* word(const Rows& rows, int h) const {
    return reinterpret_cast<uint32_t*>(static_cast<T*>(rows.data) + rows.at(row + h * 8) + column);
  }
  __device__ void store(int h, int next, float x) const {
    if (column + next >= p.out || row + h * 8 >= p.rows) return;
    static_cast<float*>(p.result.y.data)[p.result.y.at(row + h * 8) + column + next] = x;
  }
};

template <class S>
struct Consumer {
  using T = typename S::Element;
  using Sums = float[S::kTiles][4];
  const Params& p;
  Shared shared;
  int warp, lane;

  __device__ void run() const {
    Stages stages{{p.stages}};
    uint32_t phase = 0;
    for (Work<S> work(p); work.inside(); phase ^= 1) {
      if (!alone() && threadIdx.x == 0) {
        barrier_expect(shared.sent(), share(work.rank) * summands() * S::kWeights * NarrowPlan::kUnitBytes);
      }
      Sums sums;
      if constexpr (S::kParts) {
        multiply_parts(work, stages, phase, sums);
      } else {
        multiply(work, stages, sums);
      }
      if (alone()) {
        write_all(work.tile, sums);
      } else {
        if (!S::kParts) {
          wait_for_room(work, phase);
          send_all(work.rank, sums);
        }
        join(work, phase);
      }
      work.next_tile();
      if (!alone() && work.inside()) give_room();
    }
  }

 private:
  __device__ bool alone() const { return p.blocks == 1; }
  __device__ int share(int rank) const { return p.share - (rank < p.whole_shares ? 0 : 1); }
  // Sums that are added up to a result's, of a block that is not alone.
  __device__ int summands() const { return p.blocks * p.parts; }
  // Until the others' memory is free.
  __device__ void wait_for_room(const Work<S>& work, uint32_t phase) const {
    if (work.first) {
      cluster_wait_acquire();  // the others have begun
    } else {
      barrier_wait_sent(shared.taken(), phase ^ 1);
    }
  }

  // One chunk of a stage.
  __device__ void multiply_chunk(int stage, int chunk, Sums& sums, Add first) const {
    const uint32_t x = uniform(operand_low(shared.x(stage) + chunk * p.x_bytes, 0));
    const uint32_t weights = uniform(operand_low(shared.weights<S>(stage) + chunk * S::kChunkBytes, 0));
#pragma unroll
    for (int k = 0; k < NarrowPlan::kChunk / 16; ++k) {
      wgmma_shared<T>(sums, operand(x + k * 2), operand(weights + k * 2), k == 0 ? first : Add::kYes);
    }
  }
  // The stage that comes, and the one before it, while its products go on.
  struct Stages {
    Place at;
    int before = -1;
  };
  __device__ void wait_for_stage(const Stages& stages) const {
    barrier_wait(shared.full(stages.at.stage), stages.at.phase);
    wgmma_fence();
  }
  __device__ void next_stage(Stages& stages) const {
    wgmma_commit();
    if (stages.before >= 0) {
      wgmma_wait<1>();
      release(stages.before);
    }
    stages.before = stages.at.stage;
    stages.at.next();
  }
  __device__ void finish(Stages& stages) const {
    wgmma_wait<0>();
    release(stages.before);
    stages.before = -1;
  }

  __device__ void multiply(const Work<S>& work, Stages& stages, Sums& sums) const {
    for (int step = 0; step < work.steps(); ++step) {
      wait_for_stage(stages);
#pragma unroll
      for (int c = 0; c < S::kChunks; ++c) {
        multiply_chunk(stages.at.stage, c, sums, c + step == 0 ? Add::kNo : Add::kYes);
      }
      next_stage(stages);
    }
    finish(stages);
    hold(sums);
  }
  // All of the block's parts, a group of them at a time: of a block that is alone the totals, else each is sent.
  __device__ void multiply_parts(const Work<S>& work, Stages& stages, uint32_t phase, Sums& totals) const {
    for_all([&](int i, int j) { totals[i][j] = 0; });
    const int begin = work.rank * p.parts;
    for (int group = begin; group < begin + p.parts; group += S::kGroup) {
      Sums sums[S::kGroup];
      for (int chunk = group; chunk < p.chunks; chunk += kSegments) {  // what a part has no more is zeros
#pragma unroll
        for (int i = 0; i < S::kGroup; i += S::kChunks) {
          wait_for_stage(stages);
#pragma unroll
          for (int c = 0; c < S::kChunks; ++c) {
            multiply_chunk(stages.at.stage, c, sums[i + c], chunk == group ? Add::kNo : Add::kYes);
          }
          next_stage(stages);
        }
      }
      finish(stages);
#pragma unroll
      for (int i = 0; i < S::kGroup; ++i) hold(sums[i]);
      if (!alone() && group == begin) wait_for_room(work, phase);
#pragma unroll
      for (int i = 0; i < S::kGroup; ++i) {
        if (alone()) {
          for_all([&](int t, int j) { totals[t][j] += sums[i][t][j]; });
        } else {
          send_all(group + i, sums[i]);
        }
      }
    }
  }
  template <class F>
  static __device__ void for_all(const F& f) {
#pragma unroll
    for (int i = 0; i < S::kTiles * 4; ++i) f(i / 4, i % 4);
  }
  __device__ static uint32_t uniform(uint32_t x) { return __shfl_sync(0xffffffffu, x, 0); }
  __device__ void release(int stage) const {
    if (lane == 0) barrier_arrive(shared.empty(stage));
  }

  // The sums of one unit of a warp.
  static __device__ void copy_unit(const Sums& sums, int columns, typename Unit<S>::Sums& of_unit) {
#pragma unroll
    for (int w = 0; w < S::kWeights; ++w) {
#pragma unroll
      for (int j = 0; j < 4; ++j) of_unit[w][j] = sums[columns + w * S::kUnitTiles][j];
    }
  }
  // A few units at a time, since one's residual shall not wait until another's is there.
  __device__ void write_all(int tile, const Sums& sums) const {
    constexpr int kTogether = 4;
    if (warp >= p.warps) return;
#pragma unroll
    for (int first = 0; first < S::kUnitTiles; first += kTogether) {
      uint32_t residual[kTogether][2];
      float bias[kTogether][2];
#pragma unroll
      for (int i = 0; i < kTogether && first + i < S::kUnitTiles; ++i) {
        Unit<S> unit(p, tile, warp, first + i);
        unit.ask();
#pragma unroll
        for (int j = 0; j < 2; ++j) residual[i][j] = unit.residual[j], bias[i][j] = unit.bias[j];
      }
#pragma unroll
      for (int i = 0; i < kTogether && first + i < S::kUnitTiles; ++i) {
        Unit<S> unit(p, tile, warp, first + i);
#pragma unroll
        for (int j = 0; j < 2; ++j) unit.residual[j] = residual[i][j], unit.bias[j] = bias[i][j];
        typename Unit<S>::Sums of_unit;
        copy_unit(sums, first + i, of_unit);
        unit.write(of_unit);
      }
    }
  }

  // Where one of the summands of a unit of a share lies, weight by weight.
  __device__ uint32_t slot(int from, int of_share) const {
    return shared.join() + ((from * p.share + of_share) * S::kWeights * 32 + lane) * 16;
  }
  __device__ void send_all(int from, const Sums& sums) const {
    if (warp >= p.warps) return;
    int of_share = 0, to = warp;
#pragma unroll
    for (int i = 0; i < S::kUnitTiles; ++i, to += p.warps) {
      for (; to >= p.blocks; to -= p.blocks) ++of_share;
      const uint32_t here = slot(from, of_share);
      typename Unit<S>::Sums of_unit;
      copy_unit(sums, i, of_unit);
#pragma unroll
      for (int w = 0; w < S::kWeights; ++w) {
        const float(&v)[4] = of_unit[w];
        send(address_in(here + w * NarrowPlan::kUnitBytes, to), address_in(shared.sent(), to),
             make_float4(v[0], v[1], v[2], v[3]));
      }
    }
  }
  // Adds up this block's share, in the order of the blocks and of their parts.
  __device__ void join(const Work<S>& work, uint32_t phase) const {
    const int count = share(work.rank);
    bool waited = false;
    for (int i = warp; i < count || !waited; i += kWarps) {
      const int number = i * p.blocks + work.rank;
      Unit<S> unit(p, work.tile, number % p.warps, number / p.warps);
      if (i < count) unit.ask();
      if (!waited) barrier_wait_sent(shared.sent(), phase);
      waited = true;
      if (i >= count) break;
      typename Unit<S>::Sums sums = {};
      for (int from = 0; from < summands(); ++from) {
#pragma unroll
        for (int w = 0; w < S::kWeights; ++w) {
          const uint4 v = load_piece(slot(from, i) + w * NarrowPlan::kUnitBytes);
          sums[w][0] += __uint_as_float(v.x), sums[w][1] += __uint_as_float(v.y);
          sums[w][2] += __uint_as_float(v.z), sums[w][3] += __uint_as_float(v.w);
        }
      }
      unit.write(sums);
    }
  }
  // The sums of this tile are read: the next ones may come.
  __device__ void give_room() const {
    named_barrier<1, kMultipliers>();
    if (threadIdx.x < static_cast<unsigned>(p.blocks))
      barrier_arrive_having_read_in(address_in(shared.taken(), threadIdx.x));
  }
};
#endif

template <class S>
__global__ void __launch_bounds__(kThreads, S::kParts ? 1 : 2) multiply(const __grid_constant__ Params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) char memory[];
  const Shared shared{shared_address(memory), p.stages, p.stage_bytes, p.x_bytes, p.join_bytes};
  if (threadIdx.x == 0) {
#pragma unroll 1
    for (int stage = 0; stage < p.stages; ++stage) {
      barrier_init(shared.full(stage), kProducers);
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
    const Producer<S> producer{p, shared};
    if (threadIdx.x == kMultipliers) producer.fill_with_weights();
    if (threadIdx.x == kMultipliers + 32) producer.fill_with_x();
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

// With the columns that the plan has.
template <class T, int kWeights, NarrowPlan::Order kOrder>
void launch_columns(const Params& p, const NarrowPlan& plan, const Stream& stream) {
  const auto launch_if = [&]<size_t kIndex>(std::integral_constant<size_t, kIndex>) {
    constexpr int kColumns = NarrowPlan::kColumns[kIndex];
    if constexpr (kColumns % (kWeights * 8) == 0) {
      if (plan.columns == kColumns) launch<Shape<T, kColumns, kWeights, kOrder>>(p, plan, stream);
    }
  };
  [&]<size_t... kIndices>(std::index_sequence<kIndices...>) {
    (launch_if(std::integral_constant<size_t, kIndices>()), ...);
  }
  (std::make_index_sequence<NarrowPlan::kColumns.size()>());
}

template <class T, NarrowPlan::Order kOrder>
void launch_of(const Params& p, const NarrowPlan& plan, const Stream& stream) {
  plan.weights == 2 ? launch_columns<T, 2, kOrder>(p, plan, stream) : launch_columns<T, 1, kOrder>(p, plan, stream);
}

}  // namespace headrace::cuda::narrow
