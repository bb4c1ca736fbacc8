// KV lengths for which a call's splits would have larger clusters than for all of its keys.
#pragma once
#include <algorithm>
#include <array>

#include "headrace/ops/cuda/attention/sm90/decode_cluster/strict_cluster_plan.h"

namespace headrace::cuda {

// A graph is captured for the most keys of any replay, and its clusters are as small as that length wants them. A split
// of 4096 keys, captured for 32768, runs on two CTAs per KV head where eight would fit.
// Returns numbers of keys, below task.seen_keys, up to which `blocks_for(keys)` is more than for all keys; unused
// entries are 0. `blocks_for(keys)` returns the CTAs of a cluster, or 0 for none. Clusters have up to `most_blocks`
// CTAs. Up to `most_in_groups` keys default mode has fixed KV splits where it has none for more.
template <class BlocksFor>
std::array<int, 3> keys_of_larger_clusters(const StrictClusterTask& task, int most_blocks, int most_in_groups,
                                           int num_sms, const BlocksFor& blocks_for) {
  std::array<int, 3> found{};
  auto next = found.begin();
  const int blocks = blocks_for(task.seen_keys);
  for (int most = 2; most <= most_blocks; most *= 2) {
    int keys = keys_with_room(task.pieces, most, task.group_keys, num_sms);
    // Default mode may use clusters for fewer keys only.
    if (blocks == 0 && (keys >= task.seen_keys || blocks_for(keys) == 0)) keys = std::min(keys, most_in_groups);
    if (keys > 0 && keys < task.seen_keys && blocks_for(keys) > blocks) *next++ = keys;
  }
  return found;
}

}  // namespace headrace::cuda
