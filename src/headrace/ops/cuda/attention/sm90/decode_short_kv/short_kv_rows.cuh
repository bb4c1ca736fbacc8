// Short-KV decode: the rows of a warp, the keys that they see, and the layout of its shared memory.
#pragma once
#include "headrace/ops/cuda/attention/common/kv_tiles.cuh"
#include "headrace/ops/cuda/attention/common/merge_states.cuh"
#include "headrace/ops/cuda/attention/sm90/decode_short_kv/short_kv.h"
#include "headrace/ops/cuda/attention/sm90/decode_short_kv/short_kv_call.h"
#include "headrace/ops/cuda/attention/sm90/fmha_kernel_traits.cuh"

namespace headrace::cuda {

// Warps of neighbouring KV heads; heads of up to kDim elements; tiles of kKeys keys. kRuns: contiguous_kv.cuh processes
// the requests that it supports, with another order of sums.
template <class T_, int kDim_, int kKeys_, bool kRuns_>
struct ShortShape {
  using T = T_;
  static constexpr bool kRuns = kRuns_;
  static constexpr int kDim = kDim_, kChunks = kDim / 8, kWarps = 4, kThreads = 32 * kWarps;
  static constexpr int kResident = kDim <= 128 ? 2 : 1;  // CTAs per SM
  static constexpr int kKeys = kKeys_, kGroupTiles = kSm90SplitKeys / kKeys;
  static constexpr int kQueryBytes = 16 * kDim * 2, kWarpBytes = 56 * 1024 / kResident, kMostStages = 6;
  static constexpr int kControlBytes = 1024, kSharedBytes = kWarps * kWarpBytes + kControlBytes;
  static constexpr int kOutStride = kDim * 2 + 16;  // bytes of a staged output row: neighbours begin in different banks
  static_assert(kDim % 128 == 0 && kDim <= 256);
  static_assert(kResident * kSharedBytes <= 226 * 1024 && kWarpBytes >= int(sizeof(RowScratch)));
};

// Sizes that depend on the number of row tiles. A slice is the keys, or their values, of one pipeline stage.
template <class S, int kTiles>
struct ShortSliceShape {
  static constexpr int kKeys = kTiles == 1 ? 32 : 16, kProducts = kKeys / 16, kBytes = kKeys * S::kDim * 2;
  static constexpr int kOfTile = S::kKeys / kKeys;
  // Scores of the second row tile wait in shared memory where registers do not hold both.
  static constexpr bool kParks = kTiles == 2 && S::kKeys > 32;
  static constexpr int kParkedBytes = kParks ? 16 * S::kKeys * 4 : 0;
  // Slices in use or in flight: as many as fit.
  static constexpr int kStages = (S::kWarpBytes - kTiles * S::kQueryBytes - kParkedBytes) / kBytes;
  static_assert(kStages >= 3 && kStages <= S::kMostStages && 16 * S::kOutStride <= kStages * kBytes);
};

// Slices of a KV tile: those that some row sees lie in [begin, end).
struct ShortSlices {
  int first = 0;  // first position of the tile
  int begin = 0, end = 0;
  int whole_begin = 0, whole_end = 0;  // the pool holds all keys of these, so that TMA can load them
  bool with_cached = false;
  __device__ bool whole(int piece) const { return piece >= whole_begin && piece < whole_end; }
};

// Rows of a request and one KV head, from row0 on.
struct ShortPlace {
  PackedRows packed;
  int q_off, kv_head, row0, rows;
  __device__ int token_of(int row) const { return packed.token(row0 + row); }
  __device__ int head_of(int row) const { return kv_head * packed.group + packed.head(row0 + row); }
  __device__ int64_t out_at(const AttentionParams& p, int row) const {
    return (q_off + token_of(row)) * p.out_token_stride + head_of(row) * p.out_head_stride;
  }
};

// Such rows and the keys that they see. It lies in shared memory, because registers are few.
template <class S>
struct ShortRows : ShortPlace {
  KeyAxis axis;
  KeyAxis::Row top, bottom;  // of the first and last row
  BlockKeys keys;
  KeyTiles tiles;
  SeenRange run;     // seen positions of tiles that hold cached keys
  SeenRange stored;  // positions that the pool holds for the request, except the hole
  bool ranges;       // each row sees one range of positions

  __device__ ShortRows(const AttentionParams& p, const PackedRows& group, int request, int head, int first, int most)
      : ShortPlace{group, p.spans[request].q_off, head, first, min(most, p.spans[request].q_len * group.group - first)},
        axis(p, request),
        top(axis.row(p, token_of(0))),
        bottom(axis.row(p, token_of(rows - 1))),
        keys(p, axis, top, bottom),
        tiles(keys.tiles(S::kKeys)) {
    const bool cached = keys.cached.end > keys.cached.begin, fresh = keys.fresh.end > keys.fresh.begin;
    run = {cached ? keys.cached.begin : keys.fresh.begin, keys.adjacent && fresh ? keys.fresh.end : keys.cached.end};
    const bool with_new = keys.adjacent && !p.encoder && p.k_new.data == nullptr;
    stored = {run.begin, with_new ? axis.ctx + axis.span.q_len : axis.ctx};
    ranges = (p.encoder || (keys.adjacent && keys.hole.end <= keys.hole.begin)) && bottom.first_new <= axis.ctx;
  }

  // Returns the slices of list tile i, of `keys_of_piece` keys each.
  __device__ ShortSlices pieces(int i, int keys_of_piece) const {
    ShortSlices x{.first = tiles.tile(i) * S::kKeys, .with_cached = tiles.holds_cached(i)};
    const SeenRange& seen = x.with_cached ? run : keys.fresh;
    x.begin = max(seen.begin - x.first, 0) / keys_of_piece;
    x.end = (min(seen.end - x.first, S::kKeys) + keys_of_piece - 1) / keys_of_piece;
    if (x.with_cached && !keys.hole.meets(x.first, x.first + S::kKeys)) {
      x.whole_begin = (max(stored.begin - x.first, 0) + keys_of_piece - 1) / keys_of_piece;
      x.whole_end = min(stored.end - x.first, S::kKeys) / keys_of_piece;
    }
    return x;
  }
  // Returns the run of list tiles that all rows see whole and that the pool holds whole.
  __device__ SeenRange plain_tiles() const {
    if (!ranges || tiles.hole_tiles > 0) return {};
    const int from = (max(bottom.first, stored.begin) + S::kKeys - 1) / S::kKeys,
              to = min(top.end, stored.end) / S::kKeys;
    return {from - tiles.first, min(to - tiles.first, tiles.cached_count)};
  }
  __device__ bool seen_whole(const ShortSlices& of) const {  // a tile, by all rows
    return ranges && of.first >= bottom.first && of.first + S::kKeys <= top.end;
  }
  __device__ KeyAxis::Row row(const AttentionParams& p, int number) const {
    return axis.row(p, token_of(min(number, rows - 1)));
  }
  // Returns which of its keys of a tile, from position `from` on, a lane's row sees: bit 2 n + j is key 8 n + j.
  // `range`: what the row sees, if that is one range.
  __device__ uint32_t seen_by(const AttentionParams& p, int number, const SeenRange& range, int from,
                              bool with_cached) const {
    static_assert(S::kKeys <= 128);
    if (ranges) return bits_between(range.begin - from, range.end - from);
    return seen_bits(p, axis, row(p, number), keys.shift, from, with_cached);
  }
};

// One per warp, behind the memory of all warps' keys.
template <class S>
struct ShortControl {
  uint64_t full[S::kMostStages];
  alignas(16) char rows[sizeof(ShortRows<S>)];
};

// Returns the address of a row's chunk 2 d + i in a tile of kTileRows rows, if chunk i is at `first`. Swizzling changes
// two bits; every four d are a column.
template <int kTileRows>
__device__ inline uint32_t chunk_at(uint32_t first, int d) {
  return (first ^ d % 4 * 32) + d / 4 * kTileRows * 128;
}

// Starts the copies of a warp's queries to `to`: 16 lanes for each 128 elements of a row.
template <class S, int kTiles>
__device__ inline void ask_for_short_queries(const AttentionParams& p, const ShortPlace& of, uint32_t to, int lane) {
  const PackedRows packed = of.packed;
  const int row0 = of.row0, last = of.rows - 1, c = lane % S::kChunks;
  const auto* first = static_cast<const typename S::T*>(p.q) + of.q_off * p.q_token_stride +
                      int64_t{of.kv_head} * packed.group * p.q_head_stride + c * 8;
#pragma unroll 4
  for (int row = lane / S::kChunks; row < kTiles * 16; row += 32 / S::kChunks) {
    const int number = row0 + min(row, last);
    const auto* from = first + packed.token(number) * p.q_token_stride + packed.head(number) * p.q_head_stride;
    copy16(to + row / 16 * S::kQueryBytes + column_swizzled(16, row % 16, c), from, c * 8 < p.head_dim);
  }
  commit_copies();
}

// State that a warp's rows carry from tile to tile.
template <class S, int kTiles>
struct ShortSums {
  const float (&value)[kTiles][S::kDim / 8][4];
  const float (&largest)[kTiles][2];
  const float (&sum)[kTiles][2];
};

// Divides the state by its sums and writes the rows, through the warp's shared memory `shared`. Returns true if a value
// is NaN.
template <class S, int kTiles>
__device__ inline bool write_short_rows(const AttentionParams& p, const ShortPlace& rows, char* shared, int lane,
                                        const ShortSums<S, kTiles>& from) {
  float zeros = 0;  // NaN if a value is NaN or infinite; an addition is less code than a test
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
    if (m * 16 >= rows.rows) break;
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float all = from.sum[m][half], by = all == 0 ? 0.0f : p.v_scale / all;
      const int row = m * 16 + half * 8 + lane / 4;
      char* to = shared + (row % 16) * S::kOutStride + lane % 4 * 4;
#pragma unroll
      for (int d = 0; d < S::kDim / 8; ++d) {
        const float x = from.value[m][d][half * 2] * by, y = from.value[m][d][half * 2 + 1] * by;
        zeros = fmaf(x, 0, fmaf(y, 0, zeros));
        *reinterpret_cast<uint32_t*>(to + d * 16) = pack2<typename S::T>(x, y);
      }
      if (p.lse == nullptr || lane % 4 != 0 || row >= rows.rows) continue;
      p.lse[(rows.q_off + rows.token_of(row)) * p.lse_stride + rows.head_of(row)] =
          PartialState{from.largest[m][half], all}.log_sum();
    }
    __syncwarp();
    for (int i = lane; i < 16 * S::kChunks; i += 32) {
      const int row = i / S::kChunks, c = i % S::kChunks;
      if (m * 16 + row >= rows.rows || c * 8 >= p.v_head_dim) continue;
      *reinterpret_cast<uint4*>(static_cast<typename S::T*>(p.out) + rows.out_at(p, m * 16 + row) + c * 8) =
          *reinterpret_cast<const uint4*>(shared + row * S::kOutStride + c * 16);
    }
  }
  return isnan(zeros);
}

}  // namespace headrace::cuda
