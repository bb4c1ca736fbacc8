// Work of a batch-invariant cluster: its rows, the KV tiles that they see, and its fixed KV splits.
#pragma once
#include "headrace/ops/cuda/arch/request_tiles.cuh"
#include "headrace/ops/cuda/attention/sm90/decode_cluster/strict_cluster_keys.cuh"

namespace headrace::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// block() and rounds() return objects that refer to this one.
template <class S>
struct StrictPlace {
  const StrictClusterCall& call;
  const TilePlace at;
  const AttentionParams& p = call.p;
  const int group = p.heads / p.kv_heads, z = static_cast<int>(blockIdx.z), part = call.parts == 1 ? 0 : z / p.kv_heads;
  const int kv_head = z - part * p.kv_heads, piece = static_cast<int>(blockIdx.y) * p.kv_heads + kv_head;
  const KeyAxis axis{p, at.request};
  const PackedRows packed{group};
  const int row0 = at.tile * S::kRows, rows = axis.span.q_len * group, last = min(row0 + S::kRows, rows) - 1;
  const KeyAxis::Row top = axis.row(p, packed.token(row0)), bottom = axis.row(p, packed.token(last));
  const BlockKeys keys{p, axis, top, bottom};
  const KeyTiles tiles = keys.tiles(S::kKeys);
  // list tiles of a cluster
  const int share = call.groups == Groups::kShares && tiles.count > 0 ? share_of(call.parts) : 0;
  const bool one_run = tiles.count <= tiles.cached_count && tiles.hole_tiles == 0;
  const int groups = count_groups(), parts = min(call.parts, groups);

  __device__ bool has_groups() const { return part < parts; }
  __device__ StrictRounds<S::kBlocks, S::kGroupTiles> rounds() const { return {tiles, part, parts, share, one_run}; }
  __device__ StrictKeys<S> block(char* shared) const {
    const int lane = threadIdx.x % 32, warp = static_cast<int>(threadIdx.x) / 32, row = row0 + lane / 4;
    StrictKeys<S> block{{p, axis, shared, kv_head, row0, rows, group, lane, 0, warp, top, bottom},
                        static_cast<int>(blockIdx.x),
                        keys,
                        tiles,
                        {axis.row(p, packed.token(min(row, last))), axis.row(p, packed.token(min(row + 8, last)))},
                        packed,
                        p.cap > 0 ? 1.4426950408889634f : p.scale * 1.4426950408889634f};
    block.find_ranges();
    return block;
  }

  // Returns a cluster's share, in whole rounds. If there are fewer keys than that, some clusters have none.
  __device__ int share_of(int clusters) const {
    const int all = clusters * S::kBlocks;
    return (tiles.count + all - 1) / all * S::kBlocks;
  }
  __device__ int count_groups() const {
    if (tiles.count == 0) return 1;
    if (share > 0) return (tiles.count + share - 1) / share;
    if (one_run) return tiles.tile(tiles.count - 1) / S::kGroupTiles - tiles.first / S::kGroupTiles + 1;
    int count = 0;
    for (int i = 0; i < tiles.count; i = min(tiles.group_end(S::kGroupTiles, i), tiles.count)) ++count;
    return count;
  }
};

#endif

}  // namespace headrace::cuda
