// Plan of cluster decode: when clusters of CTAs process few rows, and how many. Pure functions.
#pragma once
#include <cstdint>

namespace headrace::cuda {

constexpr int kFewClusterDecodeRows = 8;    // of a CTA, if no request has more
constexpr int kClusterDecodeRows = 16;      // of a CTA, packed as (token, head of the GQA group)
constexpr int kMostClusterDecodeRows = 32;  // of a request
constexpr int kMostEvenSplits = 16;         // of a row tile; the last cluster merges them in one step

// KV splits of a row tile. kFixed: as long as batch-invariant mode's, whatever the batch. kEven: one per cluster, all
// equally long.
enum class KVSplits : uint8_t { kFixed, kEven };

struct ClusterDecodePlan {
  int cluster_size = 0;  // CTAs of a cluster, a power of two; 0: cluster decode does not run
  int clusters = 1;      // clusters that divide the KV splits of a row tile
  KVSplits splits = KVSplits::kFixed;
};

struct ClusterDecodeTask {
  int64_t row_tiles = 1, work_tiles = 0;  // of all requests; row tiles times KV heads
  int seen_keys = 0, tile_keys = 0, split_keys = 0;
};

// Returns the most CTAs of a cluster for heads of `kernel_dim`. For 128, four are faster than eight at every length.
constexpr int most_cluster_size(int kernel_dim) { return kernel_dim > 128 ? 8 : 4; }

// Returns how many clusters are resident at once, with an SM for each CTA. Clusters of more than two CTAs leave some
// SMs unused.
constexpr int resident_clusters(int cluster_size, int num_sms) {
  return (cluster_size > 2 ? num_sms - 12 : num_sms) / cluster_size;
}

// Returns for how many keys all fixed splits of `work_tiles` are resident at once, in clusters of `cluster_size`.
constexpr int keys_with_room(int64_t work_tiles, int cluster_size, int split_keys, int num_sms) {
  return static_cast<int>(resident_clusters(cluster_size, num_sms) / work_tiles) * split_keys;
}

// Returns the plan for fixed splits. If not all splits of one row tile are resident at once, clusters of two process
// several each. That is faster than a CTA per split, even where only some have one more.
constexpr ClusterDecodePlan fixed_cluster_decode_plan(const ClusterDecodeTask& task, int most_size, int num_sms) {
  const int splits = (task.seen_keys + task.split_keys - 1) / task.split_keys;
  int size = most_size;
  while (size > 2 && size / 2 * task.tile_keys >= task.seen_keys) size /= 2;  // one round of tiles is enough
  while (size > 1 && task.work_tiles * splits > resident_clusters(size, num_sms)) size /= 2;
  if (size > 1) return {.cluster_size = size, .clusters = splits};
  const auto most = static_cast<int>(task.row_tiles == 1 ? resident_clusters(2, num_sms) / task.work_tiles : 0);
  return most > 0 ? ClusterDecodePlan{.cluster_size = 2, .clusters = most} : ClusterDecodePlan{};
}

// Returns the plan of default mode for one row tile over any number of keys. Clusters fill the device, each with an
// even split of the keys. The device computes its length when the keys are there. Returns no clusters if more than an
// eighth of the device would stay idle.
constexpr ClusterDecodePlan even_cluster_decode_plan(int64_t work_tiles, int most_size, int num_sms) {
  const auto clusters_of = [&](int size) { return static_cast<int>(resident_clusters(size, num_sms) / work_tiles); };
  int size = 2;
  while (size < most_size && clusters_of(size) > kMostEvenSplits) size *= 2;
  const int clusters = clusters_of(size);
  const bool fills = work_tiles * clusters * size * 8 >= int64_t{num_sms} * 7;
  return fills ? ClusterDecodePlan{size, clusters, KVSplits::kEven} : ClusterDecodePlan{};
}

// Returns up to how many keys default mode gives the rows of one request fixed splits. One fixed split occupies fewer
// SMs than even splits fill. Alone it is slower from 2048 keys on, but in a model the following GEMMs begin on the
// other SMs. Several requests of few rows keep fixed splits for any number of keys.
constexpr int keys_in_fixed_splits(int max_rows) { return max_rows <= kFewClusterDecodeRows ? 4096 : 2048; }

// Returns the slots for partial results of a row tile over at most `max_keys` keys. New keys may lie apart from the
// cached ones, in splits of their own.
constexpr int64_t cluster_decode_slots(const ClusterDecodePlan& plan, int max_keys, int split_keys) {
  return plan.splits == KVSplits::kEven ? plan.clusters : (int64_t{max_keys} + split_keys - 1) / split_keys + 3;
}

// Bytes of the partial results of all row tiles: values, and maxima and sums.
struct ClusterDecodeMemory {
  int64_t values = 0, states = 0;
};
constexpr ClusterDecodeMemory cluster_decode_memory(const ClusterDecodePlan& plan, int64_t work_tiles, int64_t slots,
                                                    int kernel_dim) {
  const int64_t rows = work_tiles * slots * kClusterDecodeRows;
  return {.values = rows * kernel_dim * 4, .states = rows * plan.cluster_size * 8};
}

}  // namespace headrace::cuda
