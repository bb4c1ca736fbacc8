// Tile scheduler of the Hopper attention kernel: counts and cuts work tiles on the device, from the key spans. A work
// tile is a row tile of a request, one KV head, and all or some of the KV tiles that the rows see. Work tiles are made
// once per batch and serve every layer that sees the same keys.
#pragma once
#include "headrace/ops/cuda/attention/common/kv_tiles.cuh"
#include "headrace/ops/cuda/attention/sm90/even_splits.h"
#include "headrace/ops/cuda/attention/sm90/fmha.h"

namespace headrace::cuda {

struct Work {
  static constexpr int kWhole = -1, kNothing = -2;
  static constexpr int kWords = 35;
  int request = -1;                     // -1: end of the work
  int kv_head = 0, row0 = 0, rows = 0;  // rows: of the request, packed as (token, head of the GQA group)
  int slot = kWhole;                    // slot of a split's result
  int begin = 0, end = 0;               // in the list of KV tiles
  KeyTiles tiles;
  KeySpan span;              // folded
  KeyAxis::Row top, bottom;  // of the first and last row
  int value_column = 0;      // first V column of the work tile, where CTAs share V's columns
};
static_assert(sizeof(Work) == kWorkBytes && sizeof(Work) == Work::kWords * 4, "copied by words");

// Counts and cuts work tiles. Whole warps call it. kEvenSplits: a CTA's next work tile is the next one of its share.
// Its index in the plan is the number of row tiles and KV heads before it plus the number of CTAs before it. So no two
// collide. kQueue: all KV heads of a work tile are one entry.
class WorkList {
 public:
  __device__ explicit WorkList(const AttentionCall& call)
      : p_(call.p),
        plan_(call.plan),
        rows_(call.rows),
        keys_(call.keys),
        group_(p_.heads / p_.kv_heads),
        piece_tiles_(call.plan.piece_tiles),
        gathers_(call.gathers) {
    if (plan_.finer_end) find_finer();
    if (plan_.long_tiles > 0) choose_length(static_cast<unsigned>(call.blocks));
    unsigned units = 0, tiles = 0;
    for (int r = lane(); r < p_.requests; r += 32) {
      const unsigned each = each_of(r);
      if (r < 32) first_each_ = each;
      units += each * static_cast<unsigned>(row_tiles(r));
      tiles += static_cast<unsigned>(row_tiles(r));
    }
    tiles_ = static_cast<int>(__reduce_add_sync(0xffffffffu, tiles));
    units_ = __reduce_add_sync(0xffffffffu, units);
    shares_.tiles = units_ * static_cast<unsigned>(p_.kv_heads);
    shares_.blocks = max(min(static_cast<unsigned>(call.blocks), shares_.tiles / kLeastShare), 1u);
    // Heads of one row tile have equal lengths. With as many CTAs for each, no CTA has the end of one head and the
    // start of the next.
    if (const auto heads = static_cast<unsigned>(p_.kv_heads); tiles_ == 1 && shares_.blocks > heads)
      shares_.blocks -= shares_.blocks % heads;
  }

  // Writes the queue. `warps` warps share the work.
  __device__ void write_queue(unsigned warp, unsigned warps) const {
    if (warp == 0 && lane() == 0) *plan_.units = units_;
    for (int entry = tiles_ * p_.kv_heads + static_cast<int>(warp) * 32 + lane(); entry < plan_.entry_count;
         entry += static_cast<int>(warps) * 32) {
      plan_.entries[entry].parts = 0;  // unused entries: there was room for more tiles
    }
    for (unsigned unit = warp; unit < units_; unit += warps) {
      Work work;
      const Found found = find(unit, 1);
      const int tile = static_cast<int>(found.rest / found.each), part = static_cast<int>(found.rest % found.each);
      set_rows(work, found.request, tile);
      work.end = work.tiles.count;
      if (plan_.max_splits > 1) {
        const int first = request_tiles(found.request).first / group_tiles(found.request);
        set_group(work, part + first, found.tiles_before + tile);
      }
      write(unit, work);
    }
  }

  // Writes the share of one CTA.
  __device__ void write_share(unsigned block) const {
    if (lane() == 0) plan_.entries[block].parts = 0;
    unsigned at = shares_.begin(block), first = 1, last = 0;
    const unsigned until = shares_.begin(block + 1);
    for (bool begun = false; at < until; begun = true) {
      unsigned place = block;
      const Work work = shared(block, at, until, place);
      write(place, work);
      if (!begun) first = place;
      last = place;
    }
    if (lane() == 0) plan_.shares[block] = make_uint2(first, last);
  }

 private:
  static constexpr unsigned kLeastShare = 2;  // in KV tiles
  // cost of a work tile besides its KV tiles, in tiles; these units hold no keys
  static constexpr unsigned kPieceCost = 1;

  // Returns the work tile at `at`: tiles [at, until) of the shares, up to the rows' end. Advances `at`, and adds the
  // work tiles before it to `place`.
  __device__ Work shared(unsigned block, unsigned& at, unsigned until, unsigned& place) const {
    Work work;
    const unsigned kv_heads = static_cast<unsigned>(p_.kv_heads);
    const Found found = find(at, kv_heads);
    const unsigned all = found.each, unit = found.rest / all, first = found.rest % all, start = at - first;
    place += static_cast<unsigned>(found.tiles_before) * kv_heads + unit;
    work.kv_head = static_cast<int>(unit % kv_heads);
    set_rows(work, found.request, static_cast<int>(unit / kv_heads));
    const unsigned take = min(all - first, until - at), count = static_cast<unsigned>(work.tiles.count);
    at += take;
    work.begin = static_cast<int>(first), work.end = static_cast<int>(min(first + take, count));
    const bool whole = first == 0 && take >= count;
    if (first > 0 && first >= count) {
      work.slot = Work::kNothing;
    } else if (!whole) {
      work.slot = static_cast<int>(2 * block) + (first == 0);
      if (first == 0) enter(block, work, static_cast<int>(shares_.block_of(start + max(count, 1u) - 1) - block) + 1, 2);
    }
    return work;
  }
  __device__ void write(unsigned place, const Work& work) const {
    if (lane() == 0) plan_.works[place] = work;
  }

  struct Found {
    int request;
    unsigned rest;     // units of the request before the one found
    unsigned each;     // units per row tile and KV head of the request
    int tiles_before;  // row tiles of the requests before
  };

  __device__ static int lane() { return threadIdx.x % 32; }
  __device__ int row_tiles(int request) const { return (p_.spans[request].q_len * group_ + rows_ - 1) / rows_; }

  // Returns the KV tiles that a request's rows see together. No row tile sees more.
  __device__ KeyTiles request_tiles(int request) const {
    const KeyAxis axis(p_, request);
    return BlockKeys(p_, axis, axis.row(p_, 0), axis.row(p_, axis.span.q_len - 1)).tiles(keys_);
  }
  // Returns the units of a row tile and a KV head: KV tiles with kEvenSplits, else work tiles.
  __device__ unsigned each_of(int request) const {
    if (p_.spans[request].q_len == 0) return 0;
    if (plan_.sharing == WorkPlan::Sharing::kEvenSplits)
      return static_cast<unsigned>(max(request_tiles(request).count, 1)) + kPieceCost;
    if (plan_.max_splits == 1) return 1;
    const KeyTiles t = request_tiles(request);
    if (is_whole(request, t)) return 1;
    const int group = group_tiles(request);
    return static_cast<unsigned>(t.tile(t.count - 1) / group - t.first / group + 1);
  }
  // Returns true if all keys of a row tile are one work tile. `t`: the KV tiles that it sees, or that all rows of its
  // request see.
  __device__ bool is_whole(int request, const KeyTiles& t) const {
    if (t.count == 0 || t.count > t.cached_count) return true;
    return plan_.cuts == WorkPlan::Cuts::kLongFewRows &&
           (p_.spans[request].q_len * group_ > kCutRows || t.count * keys_ <= kUncutKeys);
  }
  __device__ int group_tiles(int request) const {
    const bool finer = request < 32 && (finer_ >> request & 1) != 0;
    return finer ? piece_tiles_ / WorkPlan::kFiner : piece_tiles_;
  }
  // Uses long work tiles if these give most CTAs one, and none of them two.
  __device__ void choose_length(unsigned blocks) {
    piece_tiles_ = plan_.long_tiles;
    unsigned pieces = 0;
    for (int r = lane(); r < p_.requests; r += 32) pieces += each_of(r) * static_cast<unsigned>(row_tiles(r));
    pieces = __reduce_add_sync(0xffffffffu, pieces) * static_cast<unsigned>(p_.kv_heads);
    if (pieces > blocks || pieces * 2 <= blocks) piece_tiles_ = plan_.piece_tiles;
  }
  // Marks those of the first 32 requests up to which there is at most an eighth of all tiles.
  __device__ void find_finer() {
    unsigned all = 0, upto = 0;
    for (int r = lane(); r < p_.requests; r += 32) {
      const unsigned mine = static_cast<unsigned>(row_tiles(r) * (row_tiles(r) > 0 ? request_tiles(r).count : 0));
      if (r < 32) upto = mine;
      all += mine;
    }
    all = __reduce_add_sync(0xffffffffu, all);
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const unsigned other = __shfl_up_sync(0xffffffffu, upto, step);
      if (lane() >= step) upto += other;
    }
    finer_ = __ballot_sync(0xffffffffu, upto <= all / 8);
  }
  // Returns the request that contains unit `wanted`.
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
    work.row0 = tile * rows_;
    work.rows = axis.span.q_len * group_;
    work.span = axis.span;
    const int last = min(work.row0 + rows_, work.rows) - 1;
    work.top = axis.row(p_, work.row0 / group_), work.bottom = axis.row(p_, last / group_);
    const BlockKeys keys(p_, axis, work.top, work.bottom);
    work.tiles = keys.tiles(keys_);
    // Consumers do not clear keys beyond their rows' view in a tile that TMA loads. The whole tile is loaded, as
    // if the last row saw it, because an earlier kernel may have left NaN in that shared memory.
    if (!gathers_ && p_.k_new.data == nullptr && !p_.encoder && keys.adjacent && keys.hole.end <= keys.hole.begin) {
      const int whole = (work.bottom.end + keys_ - 1) / keys_ * keys_;
      work.bottom.end = max(work.bottom.end, min(whole, axis.ctx + axis.span.q_len));
    }
  }
  // Restricts `work` to fixed split `group`. If there are several, it gets a slot: that of the first KV head; those of
  // the others follow at steps of max_splits. `tile` counts the row tiles of all requests.
  __device__ void set_group(Work& work, int group, int tile) const {
    const KeyTiles& t = work.tiles;
    if (is_whole(work.request, t)) {
      enter_heads(tile, work, 1);
      return;
    }
    const int each = group_tiles(work.request), lowest = t.first / each, highest = t.tile(t.count - 1) / each;
    if (group < lowest || group > highest) {
      work.slot = Work::kNothing;
      work.end = 0;
      return;
    }
    const int parts = highest - lowest + 1;
    work.begin = t.index_of(group * each), work.end = t.index_of((group + 1) * each);
    const int place = plan_.cuts == WorkPlan::Cuts::kLongFewRows ? work.request : tile;
    if (parts > 1) work.slot = place * p_.kv_heads * plan_.max_splits + group - lowest;
    if (group == lowest) enter_heads(tile, work, parts);
  }
  __device__ void enter_heads(int tile, Work work, int parts) const {
    for (work.kv_head = 0; work.kv_head < p_.kv_heads; ++work.kv_head) {
      enter(static_cast<unsigned>(tile * p_.kv_heads + work.kv_head), work, parts, 1);
      work.slot += plan_.max_splits;
    }
  }
  __device__ void enter(unsigned entry, const Work& work, int parts, int step) const {
    if (lane() == 0) plan_.entries[entry] = {work.request, work.kv_head, work.row0, work.rows, parts, work.slot, step};
  }

  const AttentionParams& p_;
  const WorkPlan& plan_;
  int rows_, keys_, group_, piece_tiles_;
  bool gathers_;   // keys that no row sees are zeros
  int tiles_ = 0;  // row tiles
  unsigned units_ = 0;
  EvenSplits shares_;        // even splits of the KV tiles of all KV heads among CTAs
  unsigned first_each_ = 0;  // each_of this lane's request
  unsigned finer_ = 0;       // a bit for each of the first requests: its splits are shorter
};

}  // namespace headrace::cuda
