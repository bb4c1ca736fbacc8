// Pipeline of K and V for a warp of short-KV decode: slice after slice, in the order of the MMAs.
#pragma once
#include "headrace/ops/cuda/arch/wgmma_mma.cuh"
#include "headrace/ops/cuda/attention/sm90/decode_short_kv/short_kv_rows.cuh"

namespace headrace::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Coordinates in the pool, for maps of column_map_of().
struct ColumnsAt {
  int x, slot, head, page;
};
__device__ inline void copy_columns(uint32_t to, const CUtensorMap& map, const ColumnsAt& from, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3, "
      "%4, %5, %6}], [%7], %8;" ::"r"(to),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(from.x), "r"(from.slot), "r"(0), "r"(from.head), "r"(from.page),
      "r"(barrier), "l"(kReadOnce)
      : "memory");
}

__device__ inline void prefetch_columns(const CUtensorMap& map, const ColumnsAt& from) {
  asm volatile("cp.async.bulk.prefetch.tensor.5d.L2.global.L2::cache_hint [%0, {%1, %2, %3, %4, %5}], %6;" ::"l"(
                   reinterpret_cast<uint64_t>(&map)),
               "r"(from.x), "r"(from.slot), "r"(0), "r"(from.head), "r"(from.page), "l"(kReadOnce)
               : "memory");
}

enum class ShortSide : uint8_t { kKeys, kValues };

// In each tile first all slices of K, then all of V.
template <class S, int kTiles>
struct ShortRing {
  using T = typename S::T;
  using Slice = ShortSliceShape<S, kTiles>;
  static constexpr int kStages = Slice::kStages;
  const ShortCall& call;
  const AttentionParams& p;
  const ShortRows<S>& rows;
  uint32_t full;     // the first stage's barrier
  uint32_t memory;   // the first stage
  uint32_t& phases;  // a bit per stage: the barrier phase that the next slice completes
  int lane, kv_head;
  int page, first_page = 0;  // page numbers: each lane has one of 32
  int stage = 0;             // of the next slice that is taken
  // The list of tiles, as far as it is known: its length, and the entries that are plain.
  int tiles = 0, first_tile = 0;
  SeenRange plain{};
  // The next slice to load.
  ShortSide side = ShortSide::kKeys;
  int tile = 0, piece = 0;
  ShortSlices of{};

  __device__ ShortSlices pieces(int i) const {
    if (i < plain.begin || i >= plain.end) return rows.pieces(i, Slice::kKeys);
    return {(first_tile + i) * S::kKeys, 0, Slice::kOfTile, 0, Slice::kOfTile, true};
  }
  // Loads the first slices before the rows' masks are known, where nothing hides keys. Returns how many.
  __device__ int begin_early(const KeySpan& span) {
    if (p.encoder || p.window != kNoWindow || span.hole_end > span.hole_begin) return 0;
    tiles = plain.end = span.ctx_len / S::kKeys;
    if (tiles == 0) return 0;
    of = pieces(0);
    int asked = 0;
    for (; asked < kStages && tile < tiles; ++asked) ask(asked);
    return asked;
  }
  __device__ void begin(int asked) {
    const int early = tiles;
    tiles = rows.tiles.count, first_tile = rows.tiles.first, plain = rows.plain_tiles();
    if (tile == early && tile < tiles) of = pieces(tile), piece = of.begin;
    for (int i = asked; i < kStages; ++i) ask(i);
  }
  // Waits for the next slice, which is `taken` of tile `from`, calls `use` with its address, and loads another into its
  // stage.
  template <class F>
  __device__ void take(const ShortSlices& from, int taken, F use) {
    if (from.whole(taken)) {
      barrier_wait(full + stage * 8, phases >> stage & 1);
      phases ^= 1u << stage;
    } else {
      wait_copies<0>();
      fence_for_wgmma();  // for TMA, which writes there next
      __syncwarp();
    }
    use(place(stage));
    __syncwarp();
    ask(stage);
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }

 private:
  __device__ uint32_t place(int at) const { return memory + at * Slice::kBytes; }

  __device__ void ask(int at) {
    if (tile >= tiles) return;
    if (of.whole(piece)) {
      ask_engine(at);
    } else {
      ask_lanes(at);
    }
    if (++piece < of.end) return;
    if (side == ShortSide::kValues && ++tile < tiles) of = pieces(tile);
    side = side == ShortSide::kKeys ? ShortSide::kValues : ShortSide::kKeys, piece = of.begin;
  }
  __device__ int page_at(int index) {
    if (index - first_page >= 32 || index < first_page) {
      first_page = index & ~31;
      const int last = (rows.stored.end - 1) >> p.page_shift;
      page = p.page_table[rows.axis.page_row * p.table_stride + min(first_page + lane, last)];
    }
    return __shfl_sync(0xffffffffu, page, index & 31);
  }
  __device__ void ask_engine(int at) {
    const bool keys = side == ShortSide::kKeys;
    const CUtensorMap& map = keys ? call.maps[kTiles - 1].k : call.maps[kTiles - 1].v;
    // TMA boxes have all columns of 64 elements, or one (column_map_of).
    const int dim = keys ? p.head_dim : p.v_head_dim, box_rows = min(p.page_size, Slice::kKeys),
              columns = dim == S::kDim && box_rows == Slice::kKeys ? 1 : S::kDim / 64;
    const int from = of.first + piece * Slice::kKeys;
    const uint32_t barrier = full + at * 8;
    if (lane == 0) barrier_expect(barrier, Slice::kBytes);
#pragma unroll 1
    for (int row = 0; row < Slice::kKeys; row += box_rows) {
      const int key = from + row, number = page_at(key >> p.page_shift), slot = key & (p.page_size - 1);
      if (lane != 0) continue;
#pragma unroll 1
      for (int c = 0; c < columns; ++c)
        copy_columns(place(at) + (c * Slice::kKeys + row) * 128, map, {c * 64, slot, kv_head, number}, barrier);
    }
  }
  // The lanes copy instead of TMA, one or two for a key, where some keys are new or seen by no row. The latter become
  // zeros, because their memory may hold NaN.
  __device__ void ask_lanes(int at) {
    constexpr int kLanes = 32 / Slice::kKeys;
    const int r = lane / kLanes, position = of.first + piece * Slice::kKeys + r;
    const bool is_new = rows.keys.sees_fresh(position, position + 1, of.with_cached);
    const bool seen = is_new || rows.keys.sees_cached(position, position + 1, of.with_cached);
    KeyAxis::Place key{0, 0, false};
    if (seen) key = rows.axis.place(p, kv_head, is_new ? position - rows.keys.shift : position);
    const bool values = side == ShortSide::kValues;
    const PagedSide& source = values ? (key.fresh ? p.v_new : p.v) : (key.fresh ? p.k_new : p.k);
    const T* from = static_cast<const T*>(source.data) + (values ? key.v : key.k);
    const int dim = seen ? (values ? p.v_head_dim : p.head_dim) : 0;
#pragma unroll
    for (int i = 0; i < S::kChunks / kLanes; ++i) {
      const int c = kLanes * i + lane % kLanes;
      copy16(place(at) + column_swizzled(Slice::kKeys, r, c), c * 8 < dim ? from + c * 8 : from, c * 8 < dim);
    }
    commit_copies();
  }
};

#endif

}  // namespace headrace::cuda
