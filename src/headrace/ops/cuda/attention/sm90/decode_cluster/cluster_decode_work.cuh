// Work of a cluster decode CTA: its rows, the KV tiles that they see, rounds of tiles, addresses of keys, masks.
#pragma once
#include "headrace/ops/cuda/arch/request_tiles.cuh"
#include "headrace/ops/cuda/attention/sm80/fmha_block.cuh"
#include "headrace/ops/cuda/attention/sm90/decode_cluster/cluster_decode.h"
#include "headrace/ops/cuda/attention/sm90/fmha_mask.cuh"

namespace headrace::cuda {

// List tiles [begin, end), one per CTA, of a KV split that ends at `split_end`.
struct ClusterRound {
  int begin = 0, end = 0, split_end = 0;
  __device__ int count() const { return end - begin; }
  __device__ bool ends_split() const { return end == split_end; }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Rounds of one of the clusters that divide the fixed KV splits of a row tile: every `clusters`-th split from `cluster`
// on. With even splits a cluster has `even_tiles` list tiles, which are its only split.
template <int kBlocks, int kGroupTiles>
struct ClusterRounds {
  const KeyTiles& tiles;
  int cluster, clusters, even_tiles;
  bool one_run;  // the list of tiles is one run

  // Returns the round that begins at list entry `begin`, which may be the end.
  __device__ ClusterRound at(int begin) const {
    const int count = tiles.count;
    if (begin >= count) return {count, count, count};
    const int split_end = min(even_tiles > 0 ? begin + even_tiles : tiles.group_end(kGroupTiles, begin), count);
    return {begin, min(begin + kBlocks, split_end), split_end};
  }
  // Returns the list entry at which the split begins that is `splits` behind the one of entry `i`.
  __device__ int behind(int i, int splits) const {
    if (one_run) return tiles.index_of((tiles.tile(i) / kGroupTiles + splits) * kGroupTiles);
    for (; splits > 0 && i < tiles.count; --splits) i = tiles.group_end(kGroupTiles, i);
    return i;
  }
  __device__ ClusterRound first() const {
    return at(even_tiles > 0 ? cluster * even_tiles : cluster == 0 ? 0 : behind(0, cluster));
  }
  // Returns the next round; after an empty one an empty one, because warps that work ahead request it.
  __device__ ClusterRound after(const ClusterRound& round) const {
    if (!round.ends_split()) return {round.end, min(round.end + kBlocks, round.split_end), round.split_end};
    return at(even_tiles > 0 || round.count() == 0 ? tiles.count : behind(round.begin, clusters));
  }
};

// CTA of a cluster; `rank` is its index in the cluster.
template <class S>
struct ClusterKeys : MmaBlock<S> {
  using T = typename S::T;
  int rank;
  BlockKeys keys;
  KeyTiles tiles;
  KeyAxis::Row row[2];  // this thread's
  PackedRows packed;
  float to_log2;  // converts scores, as MMAs produce them, to base 2
  int pool_from = 0, pool_to = 0, whole_from = 0, whole_to = 0, seen_from = 0, seen_to = 0;
  bool ranges = false;  // each row sees one range of positions, without gaps

  __device__ bool has_tile(const ClusterRound& round) const { return rank < round.count(); }
  __device__ int token_of(int of) const { return packed.token(this->row0 + of); }
  __device__ int head_of(int of) const { return this->kv_head * this->group + packed.head(this->row0 + of); }
  __device__ int valid_rows() const { return min(S::kRows, this->rows - this->row0); }

  // Positions that the CTA's rows read from the pool lie in [pool_from, pool_to). In tiles that hold cached keys, every
  // position of [whole_from, whole_to) is one of them. All rows see those in [seen_from, seen_to).
  __device__ void find_ranges() {
    const bool stored_new = this->p.k_new.data == nullptr && keys.fresh.end > keys.fresh.begin;
    const bool cached = keys.cached.end > keys.cached.begin;
    pool_from = cached ? keys.cached.begin : stored_new ? keys.fresh.begin : 0;
    pool_to = stored_new ? max(keys.cached.end, keys.fresh.end) : cached ? keys.cached.end : 0;
    const bool one = stored_new && keys.adjacent && (!cached || keys.fresh.begin <= keys.cached.end);
    whole_from = pool_from, whole_to = one ? keys.fresh.end : keys.cached.end;
    if (keys.hole.end > keys.hole.begin) whole_to = 0;
    ranges = (this->p.encoder || (keys.adjacent && keys.hole.end <= keys.hole.begin)) &&
             this->bottom.first_new <= this->axis.ctx;
    if (ranges) seen_from = this->bottom.first, seen_to = this->top.end;
  }
  // Eight positions that begin at a multiple of eight, hence within one page. Page numbers are loaded long before use.
  struct Octet {
    int at;
    bool with_cached, whole;
  };
  __device__ Octet octet(int i, int within) const {
    const int at = tiles.tile(i) * S::kKeys + within;
    const bool with_cached = tiles.holds_cached(i);
    return {at, with_cached, with_cached && at >= whole_from && at + 8 <= whole_to};
  }
  __device__ int page_of(const Octet& x) const {
    if (pool_to <= pool_from) return 0;
    const int near = min(max(x.at, pool_from), pool_to - 1);  // positions that are not read may have no page
    return this->p.page_table[this->axis.page_row * this->p.table_stride + (near >> this->p.page_shift)];
  }
  __device__ const T* stored_key(const Octet& x, int page, int j, const PagedSide& pool) const {
    const int slot = (x.at & (this->p.page_size - 1)) + j;
    return static_cast<const T*>(pool.data) + page * pool.page_stride + this->kv_head * pool.head_stride +
           slot * pool.slot_stride;
  }
  // Returns the address of key `j` of an octet on one side, or null if no row of the CTA sees it.
  __device__ const T* find_key(const Octet& x, int page, int j, const PagedSide& pool, const PagedSide& fresh) const {
    const int at = x.at + j;
    const bool is_new = keys.sees_fresh(at, at + 1, x.with_cached);
    if (is_new && fresh.data != nullptr) {
      const KeySpan& span = this->axis.span;
      return static_cast<const T*>(fresh.data) + (int64_t{span.q_off} + at - span.phys0) * fresh.page_stride +
             this->kv_head * fresh.head_stride;
    }
    return is_new || keys.sees_cached(at, at + 1, x.with_cached) ? stored_key(x, page, j, pool) : nullptr;
  }
  __device__ static void copy_or_clear(uint32_t to, const T* key, int d, int dim, const void* any) {
    const bool valid = key != nullptr && d < dim;
    copy16(to, valid ? static_cast<const void*>(key + d) : any, valid);
  }

  // Masks the scores of keys that a row does not see, for the 16 keys from `within` on of list tile `i`. s[n][j] is of
  // key n * 8 + lane % 4 * 2 + j % 2 and row `row[j / 2]`.
  template <int kPerOctet>
  __device__ void hide(int i, int within, float (&s)[2][kPerOctet]) const {
    const int tile = tiles.tile(i), first = tile * S::kKeys + within + this->lane % 4 * 2;
    if (tile * S::kKeys >= seen_from && (tile + 1) * S::kKeys <= seen_to) return;
    const bool with_cached = tiles.holds_cached(i);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int j = 0; j < kPerOctet; ++j) {
        const int at = first + n * 8 + j % 2;
        const KeyAxis::Row& mine = row[j / 2];
        const bool seen = ranges ? at >= mine.first && at < mine.end
                                 : sees_position(this->p, this->axis, mine, keys.shift, at, with_cached);
        if (!seen) s[n][j] = -INFINITY;
      }
    }
  }
};

// block() and rounds() return objects that refer to this one.
template <class S>
struct ClusterWork {
  const ClusterDecodeCall& call;
  const TilePlace at;
  const AttentionParams& p = call.p;
  const int group = p.heads / p.kv_heads, z = static_cast<int>(blockIdx.z),
            cluster = call.clusters == 1 ? 0 : z / p.kv_heads;
  const int kv_head = z - cluster * p.kv_heads, work_tile = static_cast<int>(blockIdx.y) * p.kv_heads + kv_head;
  const KeyAxis axis{p, at.request};
  const PackedRows packed{group};
  const int row0 = at.tile * S::kRows, rows = axis.span.q_len * group, last = min(row0 + S::kRows, rows) - 1;
  const KeyAxis::Row top = axis.row(p, packed.token(row0)), bottom = axis.row(p, packed.token(last));
  const BlockKeys keys{p, axis, top, bottom};
  const KeyTiles tiles = keys.tiles(S::kKeys);
  const int even_tiles = call.splits == KVSplits::kEven && tiles.count > 0 ? even_tiles_of(call.clusters) : 0;
  const bool one_run = tiles.count <= tiles.cached_count && tiles.hole_tiles == 0;
  const int splits = count_splits(), clusters = min(call.clusters, splits);

  __device__ bool has_splits() const { return cluster < clusters; }
  __device__ ClusterRounds<S::kBlocks, S::kGroupTiles> rounds() const {
    return {tiles, cluster, clusters, even_tiles, one_run};
  }
  __device__ ClusterKeys<S> block(char* shared) const {
    const int lane = threadIdx.x % 32, warp = static_cast<int>(threadIdx.x) / 32, row = row0 + lane / 4;
    ClusterKeys<S> block{{p, axis, shared, kv_head, row0, rows, group, lane, 0, warp, top, bottom},
                         static_cast<int>(blockIdx.x),
                         keys,
                         tiles,
                         {axis.row(p, packed.token(min(row, last))), axis.row(p, packed.token(min(row + 8, last)))},
                         packed,
                         p.cap > 0 ? 1.4426950408889634f : p.scale * 1.4426950408889634f};
    block.find_ranges();
    return block;
  }

  // Returns the list tiles of an even split, in whole rounds. If there are fewer keys than that, some clusters have
  // none.
  __device__ int even_tiles_of(int clusters) const {
    const int all = clusters * S::kBlocks;
    return (tiles.count + all - 1) / all * S::kBlocks;
  }
  __device__ int count_splits() const {
    if (tiles.count == 0) return 1;
    if (even_tiles > 0) return (tiles.count + even_tiles - 1) / even_tiles;
    if (one_run) return tiles.tile(tiles.count - 1) / S::kGroupTiles - tiles.first / S::kGroupTiles + 1;
    int count = 0;
    for (int i = 0; i < tiles.count; i = min(tiles.group_end(S::kGroupTiles, i), tiles.count)) ++count;
    return count;
  }
};

#endif

}  // namespace headrace::cuda
