// One request's few rows over many keys: how many clusters of blocks share those of a kv head.
#pragma once
#include <algorithm>
#include <cstdint>

#include "headrace/kernels/cuda/paged_attention.h"

namespace headrace::cuda {

constexpr int kMostLongBlocks = 8, kMostLongParts = 16;  // of a cluster, and clusters of a kv head
constexpr int kMostLongHeads = 8, kMostLongRows = 8;     // kv heads, and rows of each: measured with up to so many

// Blocks of a cluster, a power of two. Parts of eight heads fill a device with clusters of one block. Fewer heads have
// larger clusters, not more parts, since one block of threads adds all parts up.
inline int long_cluster_blocks(int kv_heads) {
  int blocks = kMostLongBlocks;
  while (blocks > 1 && blocks * kv_heads > kMostLongBlocks) blocks /= 2;
  return blocks;
}

// Parts of a kv head's keys, each a cluster's. `room`: clusters that the device holds at once. 0: too many heads, or
// clusters that leave more than an eighth of the device idle, which is no faster than equal shares.
inline int long_cluster_parts(int kv_heads, int room, int num_sms) {
  if (kv_heads > kMostLongHeads) return 0;
  const int parts = std::min(kMostLongParts, room / kv_heads);
  return parts * long_cluster_blocks(kv_heads) * kv_heads * 8 >= num_sms * 7 ? parts : 0;
}

struct LongClusterCall {
  AttentionParams p;
  int parts = 1;             // of a kv head's keys, each a cluster's
  float* values = nullptr;   // [kv_heads, blocks of a cluster, parts, a block's share of the rows' elements, 4 columns]
  float* states = nullptr;   // [the same, 2]: the largest score (base 2) and the sum of weights
  uint32_t* done = nullptr;  // [kv_heads, blocks of a cluster]: parts that are there; zero between calls
};

// One of these for each type of the queries, in a file of its own. `blocks`: of a cluster.
template <class T>
int room_for_long_clusters(int dim, int blocks);
template <class T>
void attend_long_cluster_of(const LongClusterCall& call, int blocks, const Stream& stream);

}  // namespace headrace::cuda
