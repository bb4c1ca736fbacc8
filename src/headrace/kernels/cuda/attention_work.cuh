// The pieces of work of one attention call, counted and cut on the device from the key spans: a piece is a tile of rows
// of a request, one kv head, and a part of the keys that they see.
#pragma once
#include "headrace/kernels/cuda/attention_sm90.h"
#include "headrace/kernels/cuda/key_tiles.cuh"

namespace headrace::cuda {

struct Work {
  int request = -1;                             // -1: no more
  int kv_head = 0, row0 = 0, rows = 0;          // rows: of the request, packed as (token, head of the group)
  int tile_index = 0;                           // over all requests
  int part = 0, parts = 1, begin = 0, end = 0;  // tiles of keys [begin, end) of the list below
  KeyTiles tiles;
  KeySpan span;  // folded
};

__device__ inline int row_tiles(const KeySpan& span, int group, int rows) {
  return (span.q_len * group + rows - 1) / rows;
}

// Tiles of keys that a request's rows see together: no tile of rows sees more.
template <int kKeys>
__device__ inline int key_tiles_of(const AttentionParams& p, int request) {
  const KeyAxis axis(p, request);
  return BlockKeys(p, axis, axis.row(p, 0), axis.row(p, axis.span.q_len - 1)).tiles<kKeys>().count;
}

// Called by whole warps; every lane gets the answers.
template <int kKeys, int kRows>
class WorkList {
 public:
  __device__ WorkList(const AttentionParams& p, const PartPlan& plan)
      : p_(p), plan_(plan), group_(p.heads / p.kv_heads) {
    long long tiles = 0;
    for (int r = lane(); plan.max_parts > 1 && r < p.requests; r += 32) {
      if (p.spans[r].q_len > 0)
        tiles += static_cast<long long>(row_tiles(p.spans[r], group_, kRows)) * key_tiles_of<kKeys>(p, r);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) tiles += __shfl_xor_sync(0xffffffffu, tiles, step);
    const long long slots = static_cast<long long>(gridDim.x) * (p.requests > 1 ? plan.rounds : 1);
    part_tiles_ = max(plan.least_tiles, static_cast<int>((tiles * p.kv_heads + slots - 1) / slots));
    int units = 0;
    for (int r = lane(); r < p.requests; r += 32) units += units_of(r);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) units += __shfl_xor_sync(0xffffffffu, units, step);
    units_ = units;
  }
  __device__ int pieces() const { return units_ * p_.kv_heads; }

  // Long causal tiles come first, and a tile's kv heads together.
  __device__ Work piece(int index) const {
    Work work;
    work.kv_head = index % p_.kv_heads;
    const int wanted = units_ - 1 - index / p_.kv_heads;
    for (int base = 0, before = 0, tiles_before = 0; base < p_.requests; base += 32) {
      const int r = base + lane(), tiles = r < p_.requests ? row_tiles(p_.spans[r], group_, kRows) : 0;
      const int mine = r < p_.requests ? units_of(r) : 0;
      int upto = mine, tiles_upto = tiles;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, upto, step),
                  other_tiles = __shfl_up_sync(0xffffffffu, tiles_upto, step);
        if (lane() >= step) upto += other, tiles_upto += other_tiles;
      }
      const unsigned reached = __ballot_sync(0xffffffffu, before + upto > wanted);
      if (reached != 0) {
        const int found = __ffs(static_cast<int>(reached)) - 1;
        const int unit = wanted - before - __shfl_sync(0xffffffffu, upto - mine, found);
        set(work, base + found, unit, tiles_before + __shfl_sync(0xffffffffu, tiles_upto - tiles, found));
        return work;
      }
      before += __shfl_sync(0xffffffffu, upto, 31);
      tiles_before += __shfl_sync(0xffffffffu, tiles_upto, 31);
    }
    return work;
  }

 private:
  __device__ static int lane() { return threadIdx.x % 32; }
  __device__ int parts_of(int key_tiles) const {
    return plan_.max_parts > 1 ? max(min((key_tiles + part_tiles_ - 1) / part_tiles_, plan_.max_parts), 1) : 1;
  }
  __device__ int units_of(int r) const {
    if (p_.spans[r].q_len == 0) return 0;
    return row_tiles(p_.spans[r], group_, kRows) * (plan_.max_parts > 1 ? parts_of(key_tiles_of<kKeys>(p_, r)) : 1);
  }
  __device__ void set(Work& work, int request, int unit, int tiles_before) const {
    const KeyAxis axis(p_, request);
    const int all = plan_.max_parts > 1 ? key_tiles_of<kKeys>(p_, request) : 1, parts = parts_of(all);
    const int tile = unit / parts, size = max((all + parts - 1) / parts, 1);
    work.request = request;
    work.tile_index = tiles_before + tile;
    work.row0 = tile * kRows;
    work.rows = axis.span.q_len * group_;
    work.span = axis.span;
    const int last = min(work.row0 + kRows, work.rows) - 1;
    work.tiles =
        BlockKeys(p_, axis, axis.row(p_, work.row0 / group_), axis.row(p_, last / group_)).template tiles<kKeys>();
    const int count = work.tiles.count;
    work.part = unit % parts;
    work.parts = plan_.max_parts > 1 ? max((count + size - 1) / size, 1) : 1;
    work.begin = plan_.max_parts > 1 ? work.part * size : 0;
    work.end = plan_.max_parts > 1 ? min(work.begin + size, count) : count;
  }

  const AttentionParams& p_;
  const PartPlan& plan_;
  int group_, part_tiles_ = 1, units_ = 0;
};

}  // namespace headrace::cuda
