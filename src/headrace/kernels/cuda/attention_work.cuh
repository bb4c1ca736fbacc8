// The pieces of work of one attention call, counted and cut on the device from the key spans: a piece is a tile of rows
// of a request, one kv head, and all or some of the tiles of keys that they see.
#pragma once
#include "headrace/kernels/cuda/attention_sm90.h"
#include "headrace/kernels/cuda/key_tiles.cuh"

namespace headrace::cuda {

struct Work {
  static constexpr int kWhole = -1, kNothing = -2;
  int request = -1;                     // -1: no more
  int kv_head = 0, row0 = 0, rows = 0;  // rows: of the request, packed as (token, head of the group)
  int slot = kWhole;                    // where a part's result goes
  int begin = 0, end = 0;               // in the list of tiles of keys
  KeyTiles tiles;
  KeySpan span;              // folded
  KeyAxis::Row top, bottom;  // of the first and last row
};

// A request's rows in the list of work. Called by whole warps.
template <int kKeys, int kRows>
class WorkList {
 public:
  __device__ WorkList(const AttentionParams& p, const WorkPlan& plan)
      : p_(p), plan_(plan), group_(p.heads / p.kv_heads) {
    unsigned units = 0;
    for (int r = lane(); r < p.requests; r += 32) {
      const unsigned each = each_of(r);
      if (r < 32) first_each_ = each;
      units += each * static_cast<unsigned>(row_tiles(r));
    }
    units_ = __reduce_add_sync(0xffffffffu, units);
    pieces_ = units_ * static_cast<unsigned>(p.kv_heads);
    blocks_ = max(min(gridDim.x, pieces_ / kLeastShare), 1u);
  }
  __device__ unsigned pieces() const { return pieces_; }

  // Piece `index` of the queue. A tile's kv heads lie together, and long causal tiles come first.
  __device__ Work queued(unsigned index) const {
    const unsigned kv_heads = static_cast<unsigned>(p_.kv_heads), place = index / kv_heads;
    const unsigned back = units_ - 1 - (plan_.both_ends ? place / 2 : place);
    Work work;
    work.kv_head = static_cast<int>(index % kv_heads);
    const Found found = find(plan_.both_ends && place % 2 == 1 ? place / 2 : back, 1);
    const int tile = static_cast<int>(found.rest / found.each), part = static_cast<int>(found.rest % found.each);
    set_rows(work, found.request, tile);
    work.end = work.tiles.count;
    if (plan_.max_parts == 1) return work;
    const int64_t tile_index = found.tiles_before + tile, entry = tile_index * p_.kv_heads + work.kv_head;
    set_group(work, part + request_tiles(found.request).first / plan_.group_tiles, entry);
    return work;
  }

  // Tiles [at, until) of the shares, until the rows' end; moves `at`.
  __device__ Work shared(unsigned& at, unsigned until) const {
    Work work;
    const unsigned kv_heads = static_cast<unsigned>(p_.kv_heads);
    const Found found = find(at, kv_heads);
    const unsigned all = found.each, unit = found.rest / all, first = found.rest % all, start = at - first;
    work.kv_head = static_cast<int>(unit % kv_heads);
    set_rows(work, found.request, static_cast<int>(unit / kv_heads));
    const unsigned take = min(all - first, until - at), count = static_cast<unsigned>(work.tiles.count);
    at += take;
    work.begin = static_cast<int>(first), work.end = static_cast<int>(min(first + take, count));
    const bool whole = first == 0 && take >= count;
    if (first > 0 && first >= count) {
      work.slot = Work::kNothing;
    } else if (!whole) {
      work.slot = static_cast<int>(2 * blockIdx.x) + (first == 0);
      if (first == 0)
        enter(static_cast<int>(blockIdx.x), work,
              block_of(start + max(count, 1u) - 1) - static_cast<int>(blockIdx.x) + 1, 2);
    }
    return work;
  }
  __device__ unsigned share(unsigned block) const { return block < blocks_ ? pieces_ * block / blocks_ : pieces_; }
  __device__ void clear_entry() const {
    if (lane() == 0) plan_.entries[blockIdx.x].parts = 0;
  }

 private:
  static constexpr unsigned kLeastShare = 2;  // tiles

  // The number of tiles of keys of all kv heads together: pools are smaller than 2^24 of them, blocks fewer than 256.
  struct Found {
    int request;
    unsigned rest;     // of the request's units before the one found
    unsigned each;     // of the request: units of one tile of rows and one kv head
    int tiles_before;  // of rows, of the requests before
  };

  __device__ static int lane() { return threadIdx.x % 32; }
  __device__ int block_of(unsigned tile) const { return static_cast<int>(((tile + 1) * blocks_ - 1) / pieces_); }
  __device__ int row_tiles(int request) const { return (p_.spans[request].q_len * group_ + kRows - 1) / kRows; }

  // Tiles of keys that a request's rows see together: no tile of rows sees more.
  __device__ KeyTiles request_tiles(int request) const {
    const KeyAxis axis(p_, request);
    return BlockKeys(p_, axis, axis.row(p_, 0), axis.row(p_, axis.span.q_len - 1)).template tiles<kKeys>();
  }
  // Units of a tile of rows and a kv head: tiles of keys with kShares, else pieces.
  __device__ unsigned each_of(int request) const {
    if (p_.spans[request].q_len == 0) return 0;
    if (plan_.sharing == WorkPlan::Sharing::kShares) return static_cast<unsigned>(max(request_tiles(request).count, 1));
    if (plan_.max_parts == 1) return 1;
    const KeyTiles t = request_tiles(request);
    if (t.count == 0 || t.count > t.cached_count) return 1;
    return static_cast<unsigned>(t.tile(t.count - 1) / plan_.group_tiles - t.first / plan_.group_tiles + 1);
  }
  __device__ Found find(unsigned wanted, unsigned kv_heads) const {
    unsigned before = 0;
    int tiles_before = 0;
    for (int base = 0; base < p_.requests; base += 32) {
      const int r = base + lane(), tiles = r < p_.requests ? row_tiles(r) : 0;
      const unsigned each = base == 0 ? first_each_ : r < p_.requests ? each_of(r) : 0;
      const unsigned mine = each * static_cast<unsigned>(tiles) * kv_heads;
      unsigned upto = mine;
      int tiles_upto = tiles;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const unsigned other = __shfl_up_sync(0xffffffffu, upto, step);
        const int other_tiles = __shfl_up_sync(0xffffffffu, tiles_upto, step);
        if (lane() >= step) upto += other, tiles_upto += other_tiles;
      }
      const unsigned reached = __ballot_sync(0xffffffffu, before + upto > wanted);
      if (reached != 0) {
        const int found = __ffs(static_cast<int>(reached)) - 1;
        return {base + found, wanted - before - __shfl_sync(0xffffffffu, upto - mine, found),
                __shfl_sync(0xffffffffu, each, found),
                tiles_before + __shfl_sync(0xffffffffu, tiles_upto - tiles, found)};
      }
      before += __shfl_sync(0xffffffffu, upto, 31);
      tiles_before += __shfl_sync(0xffffffffu, tiles_upto, 31);
    }
    return {0, 0, 1, 0};
  }
  __device__ void set_rows(Work& work, int request, int tile) const {
    const KeyAxis axis(p_, request);
    work.request = request;
    work.row0 = tile * kRows;
    work.rows = axis.span.q_len * group_;
    work.span = axis.span;
    const int last = min(work.row0 + kRows, work.rows) - 1;
    work.top = axis.row(p_, work.row0 / group_), work.bottom = axis.row(p_, last / group_);
    work.tiles = BlockKeys(p_, axis, work.top, work.bottom).template tiles<kKeys>();
  }
  // Group `group` of the keys alone, with a slot of its own when there are several.
  __device__ void set_group(Work& work, int group, int64_t entry) const {
    const KeyTiles& t = work.tiles;
    if (t.count == 0 || t.count > t.cached_count) {  // such rows are one piece
      enter(static_cast<int>(entry), work, 1, 1);
      return;
    }
    const int lowest = t.first / plan_.group_tiles, highest = t.tile(t.count - 1) / plan_.group_tiles;
    if (group < lowest || group > highest) {
      work.slot = Work::kNothing;
      work.end = 0;
      return;
    }
    const int parts = highest - lowest + 1;
    work.begin = t.index_of(group * plan_.group_tiles), work.end = t.index_of((group + 1) * plan_.group_tiles);
    if (parts > 1) work.slot = static_cast<int>(entry * plan_.max_parts) + group - lowest;
    if (group == lowest) enter(static_cast<int>(entry), work, parts, 1);
  }
  __device__ void enter(int entry, const Work& work, int parts, int step) const {
    if (lane() == 0) plan_.entries[entry] = {work.request, work.kv_head, work.row0, work.rows, parts, work.slot, step};
  }

  const AttentionParams& p_;
  const WorkPlan& plan_;
  int group_;
  unsigned units_ = 0, pieces_ = 0, blocks_ = 1;  // blocks_: of threads, with a share
  unsigned first_each_ = 0;                       // each_of this lane's request
};

}  // namespace headrace::cuda
