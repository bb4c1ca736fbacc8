// When clusters of blocks take few rows in strict mode, and how many.
#pragma once
#include <cstdint>

namespace headrace::cuda {

constexpr int kStrictClusterRows = 16;      // of a block, packed as (token, head of the group)
constexpr int kClusterDecodeRows = 8;       // of a block of the streaming kernel, where no request has more; else 16
constexpr int kMostClusterDecodeRows = 32;  // of a request that it takes
constexpr int kStrictClusterBlocks = 8;     // at most: every device of sm_90 can place so many

struct StrictClusterTask {
  int64_t pieces = 0, tiles = 1;  // tiles of rows times kv heads, and those tiles
  int seen_keys = 0, tile_keys = 0, group_keys = 0;
};

struct StrictClusterPlan {
  int blocks = 0;  // of a cluster, a power of two; 0: these rows are not for clusters
  int parts = 1;   // clusters that share out the groups of a row's keys
};

inline int strict_groups(const StrictClusterTask& task) {
  return (task.seen_keys + task.group_keys - 1) / task.group_keys;
}

// Clusters whose blocks find room at once, each on a multiprocessor of its own; clusters of more than two leave some of
// these over.
constexpr int room_for_clusters(int blocks, int num_sms) { return (blocks > 2 ? num_sms - 12 : num_sms) / blocks; }

inline bool clusters_find_room(int64_t clusters, int blocks, int num_sms) {
  return clusters <= room_for_clusters(blocks, num_sms);
}

// A round of tiles, one a block, takes some 3 us besides its products: clusters of two lose to a block for a group
// where that is more than two rounds.
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

// Blocks at most for heads of `kernel_dim`: for those of 128 four were faster than eight at every length.
constexpr int cluster_decode_blocks(int kernel_dim) { return kernel_dim > 128 ? 8 : 4; }

// The same of the streaming kernel, for tiles of 8 or 16 rows. Where not all groups of one tile's rows find room at
// once, clusters of two take several each: faster than a block for each group, even where only some have one more.
inline StrictClusterPlan cluster_decode_plan(const StrictClusterTask& task, int most_blocks, int num_sms) {
  const int parts = strict_groups(task);
  int blocks = most_blocks;
  while (blocks > 2 && blocks / 2 * task.tile_keys >= task.seen_keys) blocks /= 2;
  while (blocks > 1 && !clusters_find_room(task.pieces * parts, blocks, num_sms)) blocks /= 2;
  if (blocks > 1) return {blocks, parts};
  const auto most = static_cast<int>(task.tiles == 1 ? room_for_clusters(2, num_sms) / task.pieces : 0);
  return most > 0 ? StrictClusterPlan{2, most} : StrictClusterPlan{};
}

// For up to so many keys fast mode takes strict mode's groups. For more, one request's rows have shares (kMostShares),
// and several requests of few rows have groups still. One group is the work of fewer multiprocessors than shares fill:
// slower alone from 2048 keys on, but in a model the products behind it begin on the others.
constexpr int keys_in_groups(int max_rows) { return max_rows <= kClusterDecodeRows ? 4096 : 2048; }

struct FastRows {
  int seen_keys = 0, max_rows = 0;   // of a request
  int64_t requests = 0, tokens = 0;  // of all requests
  bool clusters = false;             // those of fast mode alone find room (paged_attention_cluster.h)
};

// Whether fast mode takes that kernel as strict mode does, where there is room: several requests of up to 8 rows for
// any number of keys. Tiles of 16 rows by streams are faster alone, and slower behind a chain of products, which takes
// steps of so few tokens: they begin when its blocks leave their shared memory, and take longer from there than
// clusters do.
constexpr bool cluster_decode_is_fast(const FastRows& rows) {
  constexpr int64_t kMostTokensOfChains = 8;
  const bool behind_gemm_sequence = rows.max_rows > kClusterDecodeRows && rows.tokens <= kMostTokensOfChains;
  const bool several = rows.requests > 1 && rows.max_rows <= kClusterDecodeRows;
  return several || (rows.seen_keys <= keys_in_groups(rows.max_rows) && !(behind_gemm_sequence && rows.clusters));
}

// For how many keys all groups of so many tiles of rows and kv heads find room at once, in clusters of `blocks`.
constexpr int keys_with_room(int64_t pieces, int blocks, int group_keys, int num_sms) {
  return static_cast<int>(room_for_clusters(blocks, num_sms) / pieces) * group_keys;
}

constexpr int kMostShares = 16;  // of a row's keys, that the last cluster adds up in one step

// In fast mode, for one tile of rows over any number of keys: clusters that fill the device, each with an equal share
// of the keys, which the device finds when it knows these. None where more than an eighth of it stays idle.
inline StrictClusterPlan even_cluster_decode_plan(int64_t pieces, int most_blocks, int num_sms) {
  const auto parts_of = [&](int blocks) { return static_cast<int>(room_for_clusters(blocks, num_sms) / pieces); };
  int blocks = 2;
  while (blocks < most_blocks && parts_of(blocks) > kMostShares) blocks *= 2;
  const int parts = parts_of(blocks);
  return pieces * parts * blocks * 8 >= int64_t{num_sms} * 7 ? StrictClusterPlan{blocks, parts} : StrictClusterPlan{};
}

}  // namespace headrace::cuda
