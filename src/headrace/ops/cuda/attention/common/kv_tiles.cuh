// KV tiles that a CTA's rows read from the pool, and what the rows see of them. Positions are those of the page table:
// cached keys [0, ctx), new keys from phys0 on. Tiles start at multiples of their size, so a row has the same tiles in
// any batch.
#pragma once
#include "headrace/ops/cuda/attention/common/mask.cuh"

namespace headrace::cuda {

// Positions of one kind (cached or new) that some row of the CTA sees. The hole is not cut out.
struct SeenRange {
  int begin = 0, end = 0;
  __device__ bool meets(int from, int to) const { return from < end && begin < to; }
};

// List of the KV tiles that a CTA reads.
struct KeyTiles {
  int first = 0, hole_at = 0, hole_tiles = 0, cached_count = 0;  // cached keys, and new keys that follow them
  int first_new = 0, count = 0;                                  // new keys stored elsewhere; count is of all tiles

  __device__ int tile(int i) const {
    if (i >= cached_count) return first_new + i - cached_count;
    return first + i + (first + i >= hole_at ? hole_tiles : 0);
  }
  // Returns how many list entries of the cached run come before tile `tile`.
  __device__ int index_of(int tile) const {
    const int hidden = min(max(tile - hole_at, 0), hole_tiles);
    return min(max(tile - hidden - first, 0), cached_count);
  }
  __device__ bool holds_cached(int i) const { return i < cached_count; }
  // Returns the list index at which the fixed KV split of entry i ends. A split has `group_tiles` tiles.
  __device__ int group_end(int group_tiles, int i) const {
    if (!holds_cached(i)) {
      const int next = (tile(i) / group_tiles + 1) * group_tiles;
      return i + next - tile(i);
    }
    return index_of((tile(i) / group_tiles + 1) * group_tiles);
  }
};

// Keys that a CTA's rows see. `top` is the first row, which sees the least; `bottom` is the last, which sees the most.
struct BlockKeys {
  SeenRange cached, fresh;  // positions
  SeenRange hole;           // hidden cached positions
  int shift = 0;            // position of a new key minus its index on the key axis
  bool adjacent = false;    // new keys follow the cached ones, so one run of tiles serves both

  __device__ BlockKeys(const AttentionParams& p, const KeyAxis& axis, const KeyAxis::Row& top,
                       const KeyAxis::Row& bottom) {
    if (!p.encoder) {
      shift = axis.span.phys0 - axis.span.ctx_len;
      if (axis.span.hole_end > axis.span.hole_begin) hole = {axis.span.hole_begin, min(axis.span.hole_end, axis.ctx)};
    }
    if (top.first < min(axis.ctx, bottom.end)) cached = {top.first, min(axis.ctx, bottom.end)};
    if (bottom.end > max(axis.ctx, top.first_new)) fresh = {max(axis.ctx, top.first_new) + shift, bottom.end + shift};
    adjacent = shift == 0;
  }

  __device__ KeyTiles tiles(int keys) const {  // `keys`: keys of a tile
    KeyTiles t;
    const bool any_cached = cached.end > cached.begin, any_fresh = fresh.end > fresh.begin;
    const int begin = any_cached ? cached.begin : fresh.begin;
    const int end = adjacent && any_fresh ? fresh.end : cached.end;
    if (any_cached || (adjacent && any_fresh)) {
      t.first = begin / keys;
      const int stop = (end + keys - 1) / keys;
      t.hole_at = max((hole.begin + keys - 1) / keys, t.first);
      t.hole_tiles = max(min(hole.end / keys, stop) - t.hole_at, 0);
      t.cached_count = stop - t.first - t.hole_tiles;
    }
    t.count = t.cached_count;
    if (!adjacent && any_fresh) {
      t.first_new = fresh.begin / keys;
      t.count += (fresh.end + keys - 1) / keys - t.first_new;
    }
    return t;
  }

  // Return true if a row of the CTA sees a position in [from, to) of a tile. `with_cached`: the tile holds cached keys.
  __device__ bool sees_cached(int from, int to, bool with_cached) const {
    const bool hidden = hole.begin <= max(from, cached.begin) && min(to, cached.end) <= hole.end;
    return with_cached && cached.meets(from, to) && !hidden;
  }
  __device__ bool sees_fresh(int from, int to, bool with_cached) const {
    return (adjacent || !with_cached) && fresh.meets(from, to);
  }
};

// Returns true if `row` sees `position` of a tile. `with_cached`: the tile holds cached keys; else it holds only new
// ones.
__device__ inline bool sees_position(const AttentionParams& p, const KeyAxis& axis, const KeyAxis::Row& row, int shift,
                                     int position, bool with_cached) {
  if (with_cached && (position < axis.ctx || shift != 0)) {
    return position < axis.ctx && axis.sees(p, row, position);
  }
  return position - shift >= axis.ctx && axis.sees(p, row, position - shift);
}

// In an MMA score fragment a lane has two keys of every eight: bit 2 n + j is its key 8 n + j. Returns the bits of the
// keys below `count` (at most 128).
__device__ inline uint32_t bits_before(int count) {
  const int within = min(max(count, 0), 128), bits = within / 8 * 2 + min(within % 8, 2);
  return bits == 32 ? UINT32_MAX : (1u << bits) - 1;
}
__device__ inline uint32_t bits_between(int begin, int end) { return bits_before(end) & ~bits_before(begin); }

// Returns the bits of the positions from `from` on that `row` sees according to sees_position().
__device__ inline uint32_t seen_bits(const AttentionParams& p, const KeyAxis& axis, const KeyAxis::Row& row, int shift,
                                     int from, bool with_cached) {
  uint32_t seen = 0;
  if (with_cached) {
    seen = bits_between(row.first - from, min(axis.ctx, row.end) - from);
    if (!p.encoder) seen &= ~bits_between(axis.span.hole_begin - from, axis.span.hole_end - from);
  }
  if (!with_cached || shift == 0) {
    seen |= bits_between(max(axis.ctx, row.first_new) + shift - from, row.end + shift - from);
  }
  return seen;
}

}  // namespace headrace::cuda
