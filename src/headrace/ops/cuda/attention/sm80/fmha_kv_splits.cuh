// KV splits of the mma.sync attention kernel.
#pragma once
#include <climits>

#include "headrace/ops/cuda/attention/common/merge_states.cuh"
#include "headrace/ops/cuda/attention/simt/attention_row.cuh"

namespace headrace::cuda {

// Split of a call's keys, and the memory of partial results.
struct SplitPlan {
  int parts = 1;      // CTAs per row tile
  int min_tiles = 1;  // least tiles of a split, so that short requests are not split
  // Batch-invariant mode: sums are cut at every multiple of this many KV tiles. They are merged in order, by one CTA or
  // with one CTA per fixed split. 0: never.
  int group_tiles = 0;
  float* values = nullptr;   // [tokens, heads, parts, v_head_dim]; null: one split, written to out
  float2* states = nullptr;  // [tokens, heads, parts]: largest score (base 2), sum
};

__host__ __device__ inline int tiles_of_part(int tiles, const SplitPlan& plan) {
  const int even = (tiles + plan.parts - 1) / plan.parts;
  return even > plan.min_tiles ? even : plan.min_tiles;
}

__device__ inline float log_sum(float largest, float sum) { return PartialState{largest, sum}.log_sum(); }

// KV tiles that a CTA reads: aligned on the key axis, without those inside the hole.
struct TileRange {
  int first = 0, hole_at = 0, hole_tiles = 0, count = 0;

  template <int kKeys>
  __device__ static TileRange of(const AttentionParams& p, const KeyAxis& axis, const KeyAxis::Row& top, int end) {
    TileRange r;
    const int begin = top.first < axis.ctx ? top.first : top.first_new;
    if (end <= begin) return r;
    r.first = begin / kKeys;
    r.count = (end + kKeys - 1) / kKeys - r.first;
    const bool hole = !p.encoder && axis.span.hole_end > axis.span.hole_begin;
    const int from = hole ? (axis.span.hole_begin + kKeys - 1) / kKeys : 0;
    const int to = hole ? min(axis.span.hole_end, axis.ctx) / kKeys : 0;
    r.hole_at = max(from, r.first);
    r.hole_tiles = max(min(to, r.first + r.count) - r.hole_at, 0);
    r.count -= r.hole_tiles;
    return r;
  }
  __device__ int tile(int i) const { return first + i + (first + i >= hole_at ? hole_tiles : 0); }
  // Returns how many of the tiles come before tile `tile`.
  __device__ int index_of(int tile) const {
    const int hidden = min(max(tile - hole_at, 0), hole_tiles);
    return min(max(tile - hidden - first, 0), count);
  }
};

// Tiles [begin, end) of the list that split `part` covers. Sums are cut at `cut` and then at every fixed split.
struct PartTiles {
  int begin, end, cut = INT_MAX;

  __device__ PartTiles(const TileRange& range, const SplitPlan& plan, int part) {
    if (plan.group_tiles == 0) {
      const int part_tiles = tiles_of_part(range.count, plan);
      begin = part * part_tiles, end = min(begin + part_tiles, range.count);
      return;
    }
    const int group = range.tile(0) / plan.group_tiles + part;
    begin = range.index_of(group * plan.group_tiles), end = range.count;
    cut = range.index_of((group + 1) * plan.group_tiles);
    if (plan.parts > 1) end = cut;
  }
  __device__ void next_cut(const TileRange& range, const SplitPlan& plan) {
    cut = range.index_of((range.tile(cut) / plan.group_tiles + 1) * plan.group_tiles);
  }
};

}  // namespace headrace::cuda
