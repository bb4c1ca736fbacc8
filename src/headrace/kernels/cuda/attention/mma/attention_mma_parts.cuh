// How the keys of a block of the baseline attention kernel are cut into parts, and how parts are joined.
#pragma once
#include <climits>

#include "headrace/kernels/cuda/attention/attention_row.cuh"
#include "headrace/kernels/cuda/attention/part_sum.cuh"

namespace headrace::cuda {

// What a block works on and how its keys are cut.
struct SplitPlan {
  int parts = 1;      // blocks for each tile of rows
  int min_tiles = 1;  // of a part, so that short requests are not cut
  // Strict mode: sums are cut at every multiple of this many tiles of keys and the groups added up in order, by one
  // block or each by a block of its own. 0: never.
  int group_tiles = 0;
  float* values = nullptr;   // [tokens, heads, parts, v_head_dim]; null: one part, written to out
  float2* states = nullptr;  // [tokens, heads, parts]: largest score (base 2), sum
};

__host__ __device__ inline int tiles_of_part(int tiles, const SplitPlan& plan) {
  const int even = (tiles + plan.parts - 1) / plan.parts;
  return even > plan.min_tiles ? even : plan.min_tiles;
}

__device__ inline float log_sum(float largest, float sum) { return PartSum{largest, sum}.log_sum(); }

// Tiles of keys that a block reads: aligned on the key axis, without those that lie inside the hole.
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
  // How many of the tiles come before tile `tile`.
  __device__ int index_of(int tile) const {
    const int hidden = min(max(tile - hole_at, 0), hole_tiles);
    return min(max(tile - hidden - first, 0), count);
  }
};

// Which of a block's tiles part `part` takes: [begin, end) of the list, cut at `cut` and then every group.
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

// One column of a row's parts, added up in order; `all` becomes what they are added up to.
__device__ inline float joined_column(const SplitPlan& plan, const float2* states, const float* column, int stride,
                                      PartSum& all) {
  constexpr int kAhead = 8;  // parts that are loaded before the first is used
  float x = 0;
  for (int base = 0; base < plan.parts; base += kAhead) {
    float value[kAhead];
    PartSum part[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int s = base + j;
      if (s >= plan.parts) continue;
      const float2 state = states[s];
      part[j] = {state.x, state.y};
      value[j] = state.y == 0 ? 0.0f : column[int64_t{s} * stride];
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (base + j >= plan.parts || part[j].sum == 0) continue;
      const PartSum next = all.joined(part[j]);
      x = all.sum == 0 ? value[j] : PartSum::joined_value(x, all.factor(next), value[j], part[j].factor(next));
      all = next;
    }
  }
  return x;
}

// Joins the parts of a row: one block for each row and head.
template <class T>
__global__ void __launch_bounds__(128) join_parts(AttentionParams p, SplitPlan plan) {
  __shared__ RowScratch scratch;
  const int token = blockIdx.x, head = blockIdx.y;
  const int64_t row = int64_t{token} * p.heads + head;
  const float2* states = plan.states + row * plan.parts;
  const float* values = plan.values + row * plan.parts * p.v_head_dim;
  bool nan = false;
  for (int d = threadIdx.x; d < p.v_head_dim; d += 128) {
    PartSum all;
    const float x = joined_column(plan, states, values + d, p.v_head_dim, all);
    const float y = x * (all.sum == 0 ? 0.0f : p.v_scale / all.sum);
    nan |= isnan(y);
    store(p.out, p.q_type, token * p.out_token_stride + head * p.out_head_stride + d, y);
    if (p.lse != nullptr && d == 0) p.lse[token * p.lse_stride + head] = log_sum(all.largest, all.sum);
  }
  if (!__syncthreads_or(nan)) return;
  for (int r = 0; r < p.requests; ++r) {
    const KeySpan& span = p.spans[r];
    if (token >= span.q_off && token < span.q_off + span.q_len)
      attend_row(p, r, token, head, scratch, RowWrite::kWhereNaN, {1, static_cast<int>(threadIdx.x)});
  }
}

}  // namespace headrace::cuda
