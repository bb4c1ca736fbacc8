// For how many keys a call's groups would have larger clusters than they have for all of its keys.
#pragma once
#include <algorithm>
#include <array>

#include "headrace/ops/cuda/attention/sm90/decode_cluster/strict_cluster_plan.h"

namespace headrace::cuda {

// A graph is recorded for the most keys of any replay, and a row's clusters are as small as all groups of these want
// them: 4096 keys in one for 32768 are the work of two blocks a kv head where eight would find room. These are numbers
// of keys, fewer than task.seen_keys, up to which `blocks_for(keys)`, the blocks of a cluster or 0 where there are
// none, is more than for all; what is left is 0. Of clusters of up to `most_blocks`; up to `most_in_groups` keys fast
// mode has groups where it has none for more.
template <class BlocksFor>
std::array<int, 3> keys_of_larger_clusters(const StrictClusterTask& task, int most_blocks, int most_in_groups,
                                           int num_sms, const BlocksFor& blocks_for) {
  std::array<int, 3> found{};
  auto next = found.begin();
  const int blocks = blocks_for(task.seen_keys);
  for (int most = 2; most <= most_blocks; most *= 2) {
    int keys = keys_with_room(task.pieces, most, task.group_keys, num_sms);
    // Fast mode may take them for fewer keys alone.
    if (blocks == 0 && (keys >= task.seen_keys || blocks_for(keys) == 0)) keys = std::min(keys, most_in_groups);
    if (keys > 0 && keys < task.seen_keys && blocks_for(keys) > blocks) *next++ = keys;
  }
  return found;
}

}  // namespace headrace::cuda
