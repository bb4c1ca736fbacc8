// Small-M GEMM (M from 2 to 64) by WGMMA (sm_90a), bound by the bytes of the weights, which are read once.
//
// Default: A = x (M = 64, padded), B = W. N of WGMMA may be any multiple of 8, so the tile width gives each SM the same
// share of the weights. For few rows of x, tiles of 64 rows of W swap the operands (swap-AB: A = W, B = x).
//
// Persistent clusters take tiles of so many rows of W, or for SwiGLU half as many of each weight. The CTAs of a cluster
// split K. Two producer threads fill the pipeline: one loads weights, before the kernel that writes x has ended (PDL),
// the other x. One consumer warpgroup multiplies.
//
// A single CTA writes its sums. In a cluster each CTA gets the sums of its share of the tile, adds them in the order of
// the CTAs and writes the results: the same bits in every run. In batch-invariant mode a CTA has some of the K splits
// of gemm_common.cuh, a group of neighbours after the other, and sends each split's sums separately. A single CTA, and
// the first one of a cluster, which has the first splits, adds them up as they come.
#pragma once
#include "headrace/ops/cuda/arch/cluster.cuh"
#include "headrace/ops/cuda/arch/pdl.cuh"
#include "headrace/ops/cuda/arch/shared_vec.cuh"
#include "headrace/ops/cuda/arch/wgmma_widths.cuh"
#include "headrace/ops/cuda/gemm/sm90/small_m_gemm_reduce.cuh"

namespace headrace::cuda::small_m {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// Fills stages with x or with weights, zeros past the ends. Each has a thread of its own, so that neither waits until
// the other's copies are issued.
template <class S>
struct Producer {
  const Params& p;
  Shared shared;

  __device__ void fill_with_x() const {
    pdl_wait();
    for_stages([&](const Work<S>& work, int stage) {
      barrier_expect(shared.full(stage), S::kChunks * p.x_bytes);
      copy<S::kChunks>(shared.x(stage), p.x, work.chunk, 0, p.x_bytes, shared.full(stage), kReadAgain);
    });
  }
  // Weights are constants: they are loaded while the previous kernel still writes x (PDL).
  __device__ void fill_with_weights() const {
    constexpr int kBytes = S::kWeightColumns * kRowBytes;
    for_stages([&](const Work<S>& work, int stage) {
      const uint32_t to = shared.weights<S>(stage), full = shared.full(stage);
      const int row = work.tile * S::kWeightColumns;
      barrier_expect(full, S::kChunks * S::kChunkBytes);
      if constexpr (S::kWeights == 1) {
        copy<S::kChunks>(to, p.weights[0], work.chunk, row, kBytes, full, kReadOnce);
      } else {  // both weights of a chunk side by side: the rows of one operand
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
    bool waited = S::kAlone;
    for (Work<S> work(p); work.inside(); work.next(), at.next()) {
      // Copies need no wait for the cluster's other CTAs. But racecheck wants all threads of a CTA to wait at the
      // cluster barrier before any passes it, so this thread does so before it waits for others.
      if (!waited && at.phase == 1) {
        cluster_wait_acquire_apart();
        waited = true;
      }
      barrier_wait(shared.empty(at.stage), at.phase ^ 1);
      fill(work, at.stage);
    }
  }
  // Copies kCount neighbouring chunks of `bytes` each.
  template <int kCount>
  __device__ void copy(uint32_t to, const CUtensorMap& map, int chunk, int row, int bytes, uint32_t full,
                       uint64_t policy) const {
    if (p.whole_chunks) return tma_load(to, map, 0, row, chunk, 0, full, policy);
#pragma unroll
    for (int c = 0; c < kCount; ++c) {
      tma_load(to + c * bytes, map, (chunk + c) * SmallMGemmPlan::kChunk, row, 0, 0, full, policy);
    }
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
      if (!S::kAlone && threadIdx.x == 0) {
        barrier_expect(shared.sent(), share(work.rank) * summands() * S::kWeights * SmallMGemmPlan::kUnitBytes);
      }
      Sums sums;
      if constexpr (S::kParts) {
        multiply_parts(work, stages, phase, sums);
      } else {
        multiply(work, stages, sums);
      }
      if constexpr (S::kAlone && !S::kHalves) {
        write_all(work.tile, sums);
        work.next_tile();
      } else {
        if (!S::kParts || work.rank == 0) {
          wait_for_room(work, phase);
          send_all(work.rank, sums);
        }
        join(work, phase);
        work.next_tile();
        if (work.inside()) give_room();
      }
    }
  }

 private:
  __device__ int share(int rank) const { return p.share - (rank < p.whole_shares ? 0 : 1); }
  __device__ int summands() const { return S::kAlone ? 1 : p.summands; }
  // Waits until the other CTAs' memory for sums is free.
  __device__ void wait_for_room(const Work<S>& work, uint32_t phase) const {
    if (!S::kAlone && !work.first) barrier_wait_sent(shared.taken(), phase ^ 1);
  }

  // Multiplies one chunk of a stage.
  __device__ void multiply_chunk(int stage, int chunk, Sums& sums, Add first) const {
    const uint32_t x = uniform(operand_low(shared.x(stage) + chunk * p.x_bytes, 0));
    const uint32_t weights = uniform(operand_low(shared.weights<S>(stage) + chunk * S::kChunkBytes, 0));
#pragma unroll
    for (int k = 0; k < SmallMGemmPlan::kChunk / 16; ++k) {
      const uint64_t rows = operand((S::kTurned ? weights : x) + k * 2),
                     columns = operand((S::kTurned ? x : weights) + k * 2);
      wgmma_shared<T>(sums, rows, columns, k == 0 ? first : Add::kYes);
    }
  }
  // The next stage, and the one before it, whose MMAs still run.
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
  // Multiplies all K splits of this CTA, a group at a time. The first CTA adds them to `totals`; the others send each
  // split's sums.
  __device__ void multiply_parts(const Work<S>& work, Stages& stages, uint32_t phase, Sums& totals) const {
    for_all([&](int i, int j) { totals[i][j] = 0; });
    const int begin = work.rank * p.parts;
    for (int group = begin; group < begin + p.parts; group += S::kGroup) {
      Sums sums[S::kGroup];
      for (int chunk = group; chunk < p.chunks; chunk += kSegments) {  // chunks past a split's end are zeros
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
      if (work.rank > 0 && group == begin) wait_for_room(work, phase);
#pragma unroll
      for (int i = 0; i < S::kGroup; ++i) {
        if (S::kAlone || work.rank == 0) {
          for_all([&](int t, int j) { totals[t][j] += sums[i][t][j]; });
        } else {
          send_all(group + i - p.parts + 1, sums[i]);
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

  // Copies the sums of one unit of a warp.
  static __device__ void copy_unit(const Sums& sums, int columns, typename Unit<S>::Sums& of_unit) {
#pragma unroll
    for (int w = 0; w < S::kWeights; ++w) {
#pragma unroll
      for (int j = 0; j < 4; ++j) of_unit[w][j] = sums[columns + w * S::kUnitTiles][j];
    }
  }
  // A few units at a time, so that one unit's residual does not wait for another's.
  __device__ void write_all(int tile, const Sums& sums) const {
    constexpr int kTogether = 4;
    if (!has_units()) return;
#pragma unroll
    for (int first = 0; first < S::kUnitTiles; first += kTogether) {
      Addends addends[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether && first + i < S::kUnitTiles; ++i) {
        Unit<S>(p, tile, warp, first + i).ask(addends[i]);
      }
#pragma unroll
      for (int i = 0; i < kTogether && first + i < S::kUnitTiles; ++i) {
        typename Unit<S>::Sums of_unit;
        copy_unit(sums, first + i, of_unit);
        Unit<S>(p, tile, warp, first + i).write(of_unit, addends[i]);
      }
    }
  }

  // Returns the address of summand `from` of a unit of the share; its weights follow one another.
  __device__ uint32_t slot(int from, int of_share) const {
    return shared.join() + ((from * p.share + of_share) * S::kWeights * 32 + lane) * 16;
  }
  __device__ bool has_units() const { return S::kTurned || warp < p.warps; }
  // Warps that have units of one weight. With swap-AB all of them, or half of them for each weight; else those with
  // rows of x.
  __device__ int unit_warps() const { return S::kTurned ? kWarps / S::kWeights : p.warps; }
  __device__ void send_all(int from, const Sums& sums) const {
    if (!has_units()) return;
    int of_share = 0, to = S::kTurned ? warp % unit_warps() : warp;  // no division by a runtime value
#pragma unroll
    for (int i = 0; i < S::kUnitTiles; ++i, to += unit_warps()) {
      for (; to >= p.blocks; to -= p.blocks) ++of_share;
      const uint32_t here = slot(from, of_share);
      if constexpr (S::kTurned) {
        send_to(to, here + warp / unit_warps() * SmallMGemmPlan::kUnitBytes, sums[i]);
      } else {
#pragma unroll
        for (int w = 0; w < S::kWeights; ++w) {
          send_to(to, here + w * SmallMGemmPlan::kUnitBytes, sums[i + w * S::kUnitTiles]);
        }
      }
    }
  }
  __device__ void send_to(int block, uint32_t here, const float (&v)[4]) const {
    const float4 four = make_float4(v[0], v[1], v[2], v[3]);
    if constexpr (S::kAlone) {
      store_vec8(here, reinterpret_cast<const uint4&>(four));
    } else {
      send(address_in(here, block), address_in(shared.sent(), block), four);
    }
  }
  // Adds up this CTA's share, in the order of the CTAs and of their splits, and writes it.
  __device__ void join(const Work<S>& work, uint32_t phase) const {
    const int count = share(work.rank);
    bool waited = false;
    for (int i = warp; i < count || !waited; i += kWarps) {
      const int number = i * p.blocks + work.rank;
      Unit<S> unit(p, work.tile, number % unit_warps(), number / unit_warps());
      Addends addends;
      if (i < count) unit.ask(addends);
      if (!waited) wait_for_sums(phase);
      waited = true;
      if (i >= count) break;
      typename Unit<S>::Sums sums = {};
      for (int from = 0; from < summands(); ++from) {
#pragma unroll
        for (int w = 0; w < S::kWeights; ++w) {
          const uint4 v = load_vec8(slot(from, i) + w * SmallMGemmPlan::kUnitBytes);
          sums[w][0] += __uint_as_float(v.x), sums[w][1] += __uint_as_float(v.y);
          sums[w][2] += __uint_as_float(v.z), sums[w][3] += __uint_as_float(v.w);
        }
      }
      unit.write(sums, addends);
    }
  }
  __device__ void wait_for_sums(uint32_t phase) const {
    S::kAlone ? named_barrier<1, kMultipliers>() : barrier_wait_sent(shared.sent(), phase);
  }
  // The sums of this tile are read: lets the cluster's CTAs send the next ones.
  __device__ void give_room() const {
    named_barrier<1, kMultipliers>();
    if (!S::kAlone && threadIdx.x < static_cast<unsigned>(p.blocks))
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
  pdl_launch_dependents();
  if constexpr (!S::kAlone) cluster_arrive_release();
  if (threadIdx.x >= kMultipliers) {
    const Producer<S> producer{p, shared};
    if (threadIdx.x == kMultipliers) producer.fill_with_weights();
    if (threadIdx.x == kMultipliers + 32) producer.fill_with_x();
    return;
  }
  pdl_wait();
  if constexpr (!S::kAlone) cluster_wait_acquire();  // the other CTAs have started
  Consumer<S>{p, shared, static_cast<int>(threadIdx.x) / 32, static_cast<int>(threadIdx.x) % 32}.run();
#endif
}

template <class S>
void launch(const Params& p, const SmallMGemmPlan& plan, const Stream& stream) {
  launch_pdl(stream, multiply<S>, dim3(static_cast<unsigned>(plan.clusters * plan.blocks)), dim3(kThreads),
             static_cast<size_t>(plan.shared_bytes()), p, "small_m_gemm",
             {.cluster = static_cast<unsigned>(plan.blocks)});
}

// Launches the kernel with the plan's tile width and swap-AB rows.
template <class T, int kWeights, SmallMGemmPlan::Order kOrder, bool kAlone>
void launch_columns(const Params& p, const SmallMGemmPlan& plan, const Stream& stream) {
  const auto launch_if = [&]<int kColumns, int kTurnedRows>(std::integer_sequence<int, kColumns, kTurnedRows>) {
    if constexpr (kTurnedRows <= SmallMGemmPlan::most_turned_rows(kWeights)) {
      if (plan.columns == kColumns && plan.turned_rows() == kTurnedRows) {
        launch<Shape<T, kColumns, kWeights, kOrder, kTurnedRows, kAlone>>(p, plan, stream);
      }
    }
  };
  [&]<size_t... kIndices>(std::index_sequence<kIndices...>) {
    (launch_if(std::integer_sequence<int, SmallMGemmPlan::kColumns[kIndices], 0>()), ...);
  }
  (std::make_index_sequence<SmallMGemmPlan::kColumns.size()>());
  static_assert(SmallMGemmPlan::kFewestBoxRows == 16 &&
                SmallMGemmPlan::most_turned_rows(1) == 32);  // there are no others
  launch_if(std::integer_sequence<int, SmallMGemmPlan::kTurnedColumns, 16>());
  launch_if(std::integer_sequence<int, SmallMGemmPlan::kTurnedColumns, 32>());
}

template <class T, int kWeights, SmallMGemmPlan::Order kOrder>
void launch_blocks(const Params& p, const SmallMGemmPlan& plan, const Stream& stream) {
  plan.blocks == 1 ? launch_columns<T, kWeights, kOrder, true>(p, plan, stream)
                   : launch_columns<T, kWeights, kOrder, false>(p, plan, stream);
}

template <class T, SmallMGemmPlan::Order kOrder>
void launch_of(const Params& p, const SmallMGemmPlan& plan, const Stream& stream) {
  plan.weights == 2 ? launch_blocks<T, 2, kOrder>(p, plan, stream) : launch_blocks<T, 1, kOrder>(p, plan, stream);
}

}  // namespace headrace::cuda::small_m
