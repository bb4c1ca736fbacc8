// Attention of many short requests: what a warp works on, and what lies where in its shared memory.
#pragma once
#include "headrace/kernels/cuda/attention_sm90.h"
#include "headrace/kernels/cuda/attention_sm90_shape.cuh"
#include "headrace/kernels/cuda/key_tiles.cuh"

namespace headrace::cuda {

// Warps of neighbouring kv heads; heads of up to 128 elements; tiles of kKeys keys.
template <class T_, int kKeys_>
struct ShortShape {
  using T = T_;
  static constexpr int kDim = 128, kChunks = kDim / 8, kWarps = 4, kThreads = 32 * kWarps, kResident = 2;
  static constexpr int kKeys = kKeys_, kGroupTiles = kSm90GroupKeys / kKeys;
  static constexpr int kRows = 32;  // of a warp at a time: one or two tiles of 16
  static constexpr int kQueryBytes = 16 * kDim * 2, kWarpBytes = 28 * 1024, kMostStages = 5;
  static constexpr int kControlBytes = 1024, kSharedBytes = kWarps * kWarpBytes + kControlBytes;
  static constexpr int kOutStride = kDim * 2 + 16;  // bytes of a row on its way out: neighbours begin in other banks
  static_assert(kSharedBytes <= 113 * 1024 && kWarpBytes >= int(sizeof(RowScratch)));
};

// What depends on how many tiles of rows there are. A piece is the keys, or their values, that are brought together.
template <class S, int kTiles>
struct ShortPieceShape {
  static constexpr int kKeys = kTiles == 1 ? 32 : 16, kProducts = kKeys / 16, kBytes = kKeys * S::kDim * 2;
  static constexpr int kOfTile = S::kKeys / kKeys;
  // Scores of the second tile of rows wait in shared memory where registers do not hold both.
  static constexpr bool kParks = kTiles == 2 && S::kKeys > 32;
  static constexpr int kParkedBytes = kParks ? 16 * S::kKeys * 4 : 0;
  // Pieces in use or under way: all that there is room for.
  static constexpr int kStages = (S::kWarpBytes - kTiles * S::kQueryBytes - kParkedBytes) / kBytes;
  static_assert(kStages >= 3 && kStages <= S::kMostStages && 16 * S::kOutStride <= kStages * kBytes);
};

// Of a tile of keys: the pieces that some row sees lie in [begin, end).
struct ShortPieces {
  int first = 0;  // position of the tile
  int begin = 0, end = 0;
  int whole_begin = 0, whole_end = 0;  // the pool holds all keys of these, so that the copy engine can bring them
  bool with_cached = false;
  __device__ bool whole(int piece) const { return piece >= whole_begin && piece < whole_end; }
};

// A request's rows of one kv head, or some of them, and the keys that they see. It lies in shared memory, as registers
// are few.
template <class S>
struct ShortRows {
  KeyAxis axis;
  int kv_head, row0, rows;  // rows: from row0 on
  PackedRows packed;
  KeyAxis::Row top, bottom;  // of the first and last row
  BlockKeys keys;
  KeyTiles tiles;
  SeenRange run;     // seen positions of tiles that hold cached keys
  SeenRange stored;  // positions that the pool holds for the request, but for the hole
  bool ranges;       // a row sees one range of positions

  __device__ ShortRows(const AttentionParams& p, const PackedRows& group, int request, int head, int first)
      : axis(p, request),
        kv_head(head),
        row0(first),
        rows(min(S::kRows, axis.span.q_len * group.group - first)),
        packed(group),
        top(axis.row(p, token_of(0))),
        bottom(axis.row(p, token_of(rows - 1))),
        keys(p, axis, top, bottom),
        tiles(keys.tiles(S::kKeys)) {
    const bool cached = keys.cached.end > keys.cached.begin, fresh = keys.fresh.end > keys.fresh.begin;
    run = {cached ? keys.cached.begin : keys.fresh.begin, keys.joined && fresh ? keys.fresh.end : keys.cached.end};
    const bool with_new = keys.joined && !p.encoder && p.k_new.data == nullptr;
    stored = {run.begin, with_new ? axis.ctx + axis.span.q_len : axis.ctx};
    ranges = (p.encoder || (keys.joined && keys.hole.end <= keys.hole.begin)) && bottom.first_new <= axis.ctx;
  }
  __device__ int token_of(int row) const { return packed.token(row0 + row); }
  __device__ int head_of(int row) const { return kv_head * packed.group + packed.head(row0 + row); }
  __device__ int64_t out_at(const AttentionParams& p, int row) const {
    return (axis.span.q_off + token_of(row)) * p.out_token_stride + head_of(row) * p.out_head_stride;
  }

  // Of entry i of the list of tiles, in pieces of so many keys.
  __device__ ShortPieces pieces(int i, int keys_of_piece) const {
    ShortPieces x{.first = tiles.tile(i) * S::kKeys, .with_cached = tiles.holds_cached(i)};
    const SeenRange& seen = x.with_cached ? run : keys.fresh;
    x.begin = max(seen.begin - x.first, 0) / keys_of_piece;
    x.end = (min(seen.end - x.first, S::kKeys) + keys_of_piece - 1) / keys_of_piece;
    if (x.with_cached && !keys.hole.meets(x.first, x.first + S::kKeys)) {
      x.whole_begin = (max(stored.begin - x.first, 0) + keys_of_piece - 1) / keys_of_piece;
      x.whole_end = min(stored.end - x.first, S::kKeys) / keys_of_piece;
    }
    return x;
  }
  // Entries of the list of tiles that all rows see whole and that the pool holds whole: one after the other.
  __device__ SeenRange plain_tiles() const {
    if (!ranges || tiles.hole_tiles > 0) return {};
    const int from = (max(bottom.first, stored.begin) + S::kKeys - 1) / S::kKeys,
              to = min(top.end, stored.end) / S::kKeys;
    return {from - tiles.first, min(to - tiles.first, tiles.cached_count)};
  }
  __device__ bool seen_whole(const ShortPieces& of) const {  // by all rows: a tile
    return ranges && of.first >= bottom.first && of.first + S::kKeys <= top.end;
  }
  __device__ KeyAxis::Row row(const AttentionParams& p, int number) const {
    return axis.row(p, token_of(min(number, rows - 1)));
  }
  // Which of its keys of a tile, beginning at position `from`, a lane's row sees: bit 2 n + j is of key 8 n + j.
  // `range`: what the row sees where that is one range.
  __device__ uint32_t seen_by(const AttentionParams& p, int number, const SeenRange& range, int from,
                              bool with_cached) const {
    if (ranges) return before(range.end - from) & ~before(range.begin - from);
    const KeyAxis::Row one = row(p, number);
    uint32_t seen = 0;
#pragma unroll 1
    for (int i = 0; i < S::kKeys / 4; ++i) {
      const int at = from + i / 2 * 8 + i % 2;
      if (sees_position(p, axis, one, keys.shift, at, with_cached)) seen |= 1u << i;
    }
    return seen;
  }

 private:
  // Bits of a lane's keys before its key `count`.
  __device__ static uint32_t before(int count) {
    const int within = min(max(count, 0), S::kKeys), bits = within / 8 * 2 + min(within % 8, 2);
    return bits == 32 ? UINT32_MAX : (1u << bits) - 1;
  }
};

// Of a warp, behind the shared memory of all for keys.
template <class S>
struct ShortControl {
  uint64_t full[S::kMostStages];
  alignas(16) char rows[sizeof(ShortRows<S>)];
};

struct ShortCall {
  AttentionParams p;
  KVMaps maps[2];  // for one tile of rows, and for two
};

}  // namespace headrace::cuda
