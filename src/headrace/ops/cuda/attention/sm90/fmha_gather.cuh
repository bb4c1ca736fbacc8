// Gathers tiles of K and V row by row: of pages too small for TMA, and of new keys that the call has beside the pool.
#pragma once
#include "headrace/ops/cuda/attention/sm90/fmha_kernel_traits.cuh"

namespace headrace::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Places of a tile's rows of K and V; a lane has every 32nd. A number from 0 on is a slot of the pool, counted over all
// pages. kHidden: no row of Q sees the key, which is loaded as zeros. kHidden - 1 - t: the key is that of new token t.
template <class S>
struct TileRows {
  static constexpr int kHidden = -1, kOfLane = S::kKeys / 32;
  int at[kOfLane];
};

// Gathers the tiles of a work tile. Whole warps call it.
template <class S>
struct Gatherer {
  using T = typename S::T;
  // Lanes that share a row; rows of a copy; copies of eight rows, after which the swizzle repeats.
  static constexpr int kChunks = S::kDim / 8, kTogether = 32 / kChunks, kCopies = 8 / kTogether;

  const AttentionParams& p;
  const BlockKeys& keys;
  const int32_t* table;  // pages of the request
  const Work& work;
  int lane;

  // Returns the rows of list entry `entry`, which may lie behind the last one. They are read ahead of their tile.
  __device__ TileRows<S> rows_of(int entry) const {
    TileRows<S> rows;
    const bool inside = entry < work.end;
    const int i = inside ? list_entry<S>(work, entry) : 0, first = work.tiles.tile(i) * S::kKeys;
    const bool with_cached = work.tiles.holds_cached(i);
#pragma unroll
    for (int j = 0; j < TileRows<S>::kOfLane; ++j) {
      const int at = first + j * 32 + lane;
      const bool fresh = inside && keys.sees_fresh(at, at + 1, with_cached),
                 cached = inside && keys.sees_cached(at, at + 1, with_cached);
      rows.at[j] = TileRows<S>::kHidden;
      if (cached || (fresh && p.k_new.data == nullptr)) {
        rows.at[j] = table[at >> p.page_shift] * p.page_size + (at & (p.page_size - 1));
      } else if (fresh) {
        rows.at[j] = TileRows<S>::kHidden - 1 - (work.span.q_off + at - work.span.phys0);
      }
    }
    return rows;
  }

  // Copies one side of a tile once `empty` allows it; `full` completes behind the copies. dim: of a row, at most kDim.
  __device__ void copy(const PagedSide& pool, const PagedSide& fresh, int dim, const TileRows<S>& rows, uint32_t to,
                       uint64_t& full, uint64_t& empty, uint32_t phase) const {
    const int chunk = lane % kChunks, within = lane / kChunks;
    const uint4 *pool_rows = rows_from(pool, chunk), *new_rows = rows_from(fresh, chunk);
    const bool inside = chunk * 8 < dim;
    barrier_wait(shared_address(&empty), phase ^ 1);
#pragma unroll
    for (int j = 0; j < TileRows<S>::kOfLane; ++j) {
      const int at = rows.at[j];
      const uint32_t mine = units_of(pool, fresh, at);
      const unsigned seen = __ballot_sync(0xffffffffu, at != TileRows<S>::kHidden),
                     pooled = __ballot_sync(0xffffffffu, at >= 0);
      const uint32_t here = to + column_swizzled(S::kKeys, j * 32, chunk / 8 * 8);
      if (seen == 0xffffffffu && (pooled == 0 || pooled == 0xffffffffu)) {
        copy_32(pooled == 0 ? new_rows : pool_rows, mine, here, chunk, inside);
      } else {
#pragma unroll 1
        for (int r = within; r < 32; r += kTogether) {
          const uint32_t units = __shfl_sync(0xffffffffu, mine, r);
          const uint4* from = ((pooled >> r & 1) != 0 ? pool_rows : new_rows) + units;
          const bool copies = inside && (seen >> r & 1) != 0;
          copy16(here + column_swizzled(S::kKeys, r, chunk % 8), copies ? from : p.q, copies);
        }
      }
    }
    arrive_behind_copies(shared_address(&full));
  }

 private:
  // Copies 32 rows that lie `mine` units, one row's per lane, behind `from`. Few instructions: one warp feeds the SM.
  __device__ void copy_32(const uint4* from, uint32_t mine, uint32_t here, int chunk, bool inside) const {
    const int within = lane / kChunks;
    const uint32_t first = here + column_swizzled(S::kKeys, within, chunk % 8);
#pragma unroll
    for (int begin = 0; begin < 32; begin += 8) {
      uint32_t units[kCopies];
#pragma unroll
      for (int k = 0; k < kCopies; ++k) units[k] = __shfl_sync(0xffffffffu, mine, begin + k * kTogether + within);
#pragma unroll
      for (int k = 0; k < kCopies; ++k) {
        const auto row = static_cast<uint32_t>(k * kTogether);
        copy16((first ^ row * 16) + (static_cast<uint32_t>(begin) + row) * 128, from + units[k], inside);
      }
    }
  }
  static constexpr int kUnit = 16 / sizeof(T);  // elements of 16 bytes, the unit of all strides

  // Returns chunk `chunk` of the first row of the work tile's KV head.
  __device__ const uint4* rows_from(const PagedSide& side, int chunk) const {
    return static_cast<const uint4*>(side.data) + work.kv_head * (side.head_stride / kUnit) + chunk;
  }
  // Returns how far a row lies behind the first one, in units of 16 bytes (AttentionProblem::in_reach). A hidden row is
  // not read: its number means nothing.
  __device__ uint32_t units_of(const PagedSide& pool, const PagedSide& fresh, int at) const {
    const auto units = [](int64_t stride) { return static_cast<uint32_t>(stride / kUnit); };
    if (at < 0) return static_cast<uint32_t>(TileRows<S>::kHidden - 1 - at) * units(fresh.page_stride);
    return static_cast<uint32_t>(at >> p.page_shift) * units(pool.page_stride) +
           static_cast<uint32_t>(at & (p.page_size - 1)) * units(pool.slot_stride);
  }
};

enum class KVSide : uint8_t { kKeys, kValues };

// Copies one side of a work tile's tiles; calls `before` with each list entry first.
template <class S, class F>
__device__ void gather_side(const Gatherer<S>& gatherer, KVSide side, const SharedLayout<S>& shared,
                            PipelineState<S::kStages>& place, F before) {
  Control<S>& control = shared.control();
  const AttentionParams& p = gatherer.p;
  TileRows<S> rows = gatherer.rows_of(gatherer.work.begin);
  for (int i = gatherer.work.begin; i < gatherer.work.end; ++i, place.next()) {
    before(i);
    const TileRows<S> next = gatherer.rows_of(i + 1);
    if (side == KVSide::kKeys) {
      gatherer.copy(p.k, p.k_new, p.head_dim, rows, shared.k(place.stage), control.k_full[0][place.stage],
                    control.k_empty[place.stage], place.phase);
    } else {
      gatherer.copy(p.v, p.v_new, p.v_head_dim, rows, shared.v(place.stage), control.v_full[0][place.stage],
                    control.v_empty[place.stage], place.phase);
    }
    rows = next;
  }
}

// Warp that gathers the values of the work tiles that the producer publishes, while the producer gathers their keys: a
// warp has too few copies in flight for both.
template <class S>
struct ValueGatherer {
  const AttentionParams& p;
  SharedLayout<S> shared;
  int lane;

  __device__ void run() const {
    Control<S>& control = shared.control();
    PipelineState<S::kStages> place;
    PipelineState<2> at;
    for (;; at.next()) {
      barrier_wait(shared_address(&control.work_full[at.stage]), at.phase);
      const Work& work = control.work[at.stage];
      if (work.request < 0) return;
      if (work.slot != Work::kNothing) gather(work, place);
      barrier_arrive(shared_address(&control.work_empty[at.stage]));
    }
  }

 private:
  __device__ void gather(const Work& work, PipelineState<S::kStages>& place) const {
    const KeyAxis axis(p, work.span);
    const BlockKeys keys(p, axis, work.top, work.bottom);
    gather_side<S>({p, keys, p.page_table + axis.page_row * p.table_stride, work, lane}, KVSide::kValues, shared, place,
                   [](int) {});
  }
};

#endif

}  // namespace headrace::cuda
