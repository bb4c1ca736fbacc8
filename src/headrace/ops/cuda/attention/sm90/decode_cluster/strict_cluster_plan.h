// Plan of cluster decode: when clusters of CTAs process few rows, and how many.
#pragma once
#include <cstdint>

namespace headrace::cuda {

constexpr int kStrictClusterRows = 16;      // of a CTA, packed as (token, head of the GQA group)
constexpr int kClusterDecodeRows = 8;       // of a CTA of cluster_decode.cuh, if no request has more; else 16
constexpr int kMostClusterDecodeRows = 32;  // of a request that cluster_decode.cuh supports
constexpr int kStrictClusterBlocks = 8;     // of a cluster at most: every sm_90 device can place 8

struct StrictClusterTask {
  int64_t pieces = 0, tiles = 1;  // row tiles times KV heads, and row tiles
  int seen_keys = 0, tile_keys = 0, group_keys = 0;
};

struct StrictClusterPlan {
  int blocks = 0;  // CTAs of a cluster, a power of two; 0: no clusters for these rows
  int parts = 1;   // clusters that divide a row's KV splits
};

inline int strict_groups(const StrictClusterTask& task) {
  return (task.seen_keys + task.group_keys - 1) / task.group_keys;
}

// Returns how many clusters are resident at once, with an SM for each CTA. Clusters of more than two CTAs leave some
// SMs unused.
constexpr int room_for_clusters(int blocks, int num_sms) { return (blocks > 2 ? num_sms - 12 : num_sms) / blocks; }

inline bool clusters_find_room(int64_t clusters, int blocks, int num_sms) {
  return clusters <= room_for_clusters(blocks, num_sms);
}

// A round of tiles, one per CTA, takes some 3 us besides its MMAs. Clusters of two lose to a CTA per split if that is
// more than two rounds.
inline StrictClusterPlan strict_cluster_plan(const StrictClusterTask& task, int num_sms) {
  const int parts = strict_groups(task);
  int blocks = kStrictClusterBlocks;
  while (blocks > 2 && blocks / 2 * task.tile_keys >= task.seen_keys) blocks /= 2;  // one round is enough
  for (; blocks > 1; blocks /= 2) {
    if (!clusters_find_room(task.pieces * parts, blocks, num_sms)) continue;
    if (blocks == 2 && task.seen_keys > 2 * blocks * task.tile_keys) break;
    return {blocks, parts};
  }
  return {};
}

// Returns the most CTAs of a cluster for heads of `kernel_dim`. For 128, four are faster than eight at every length.
constexpr int cluster_decode_blocks(int kernel_dim) { return kernel_dim > 128 ? 8 : 4; }

// Returns the plan of cluster_decode.cuh, for row tiles of 8 or 16. If not all splits of one row tile are resident at
// once, clusters of two process several each. That is faster than a CTA per split, even where only some have one more.
inline StrictClusterPlan cluster_decode_plan(const StrictClusterTask& task, int most_blocks, int num_sms) {
  const int parts = strict_groups(task);
  int blocks = most_blocks;
  while (blocks > 2 && blocks / 2 * task.tile_keys >= task.seen_keys) blocks /= 2;
  while (blocks > 1 && !clusters_find_room(task.pieces * parts, blocks, num_sms)) blocks /= 2;
  if (blocks > 1) return {blocks, parts};
  const auto most = static_cast<int>(task.tiles == 1 ? room_for_clusters(2, num_sms) / task.pieces : 0);
  return most > 0 ? StrictClusterPlan{2, most} : StrictClusterPlan{};
}

// Returns up to how many keys default mode uses batch-invariant mode's fixed KV splits. For more, one request's rows
// have even splits (kMostShares), and several requests of few rows keep fixed ones. One fixed split occupies fewer SMs
// than even splits fill. Alone it is slower from 2048 keys on, but in a model the following GEMMs begin on the other
// SMs.
constexpr int keys_in_groups(int max_rows) { return max_rows <= kClusterDecodeRows ? 4096 : 2048; }

struct FastRows {
  int seen_keys = 0, max_rows = 0;   // of a request
  int64_t requests = 0, tokens = 0;  // of all requests
  bool clusters = false;             // the clusters of default mode alone fit
};

// Returns true if default mode uses cluster_decode.cuh as batch-invariant mode does, where there is room. Several
// requests of up to 8 rows: for any number of keys. Row tiles of 16 are faster alone, but slower behind a GEMM
// sequence, which runs steps of so few tokens. They begin when its CTAs free their shared memory, and take longer from
// there than the other clusters do.
constexpr bool cluster_decode_is_fast(const FastRows& rows) {
  constexpr int64_t kMostTokensOfChains = 8;
  const bool behind_gemm_sequence = rows.max_rows > kClusterDecodeRows && rows.tokens <= kMostTokensOfChains;
  const bool several = rows.requests > 1 && rows.max_rows <= kClusterDecodeRows;
  return several || (rows.seen_keys <= keys_in_groups(rows.max_rows) && !(behind_gemm_sequence && rows.clusters));
}

// Returns for how many keys all splits of `pieces` row tiles and KV heads are resident at once, in clusters of `blocks`
// CTAs.
constexpr int keys_with_room(int64_t pieces, int blocks, int group_keys, int num_sms) {
  return static_cast<int>(room_for_clusters(blocks, num_sms) / pieces) * group_keys;
}

constexpr int kMostShares = 16;  // even KV splits of a row; the last cluster merges them in one step

// Returns the plan of default mode for one row tile over any number of keys. Clusters fill the device, each with an
// equal share of the keys. The device computes the share when the keys are there. Returns no clusters if more than an
// eighth of the device would stay idle.
inline StrictClusterPlan even_cluster_decode_plan(int64_t pieces, int most_blocks, int num_sms) {
  const auto parts_of = [&](int blocks) { return static_cast<int>(room_for_clusters(blocks, num_sms) / pieces); };
  int blocks = 2;
  while (blocks < most_blocks && parts_of(blocks) > kMostShares) blocks *= 2;
  const int parts = parts_of(blocks);
  return pieces * parts * blocks * 8 >= int64_t{num_sms} * 7 ? StrictClusterPlan{blocks, parts} : StrictClusterPlan{};
}

}  // namespace headrace::cuda
