// When a cluster of blocks takes a row's keys, and how many blocks it has.
#pragma once
#include <cstdint>

#include "headrace/ops/cuda/attention/attention_params.h"

namespace headrace::cuda {

constexpr int kClusterRows = 16, kClusterKeys = 64;  // of a block, packed as (token, head of the group); of a tile
constexpr int kMostClusterBlocks = 8;                // that every device of sm_90 can place

// Blocks of a cluster, a power of two, so that all find room on the device; 0: these rows are not for clusters.
// `pieces`: tiles of rows times kv heads. Two blocks fit a multiprocessor, of heads above 128 one. Where a block would
// take more tiles than half as many as there are blocks, bytes count, and kernels that copy whole tiles are faster.
inline int cluster_blocks(int64_t pieces, int seen_keys, int dim, int num_sms) {
  const int64_t room = int64_t{dim > 128 ? 1 : 2} * num_sms;
  int blocks = kMostClusterBlocks;
  while (blocks > 1 && pieces * blocks > room) blocks /= 2;
  return pieces * blocks <= room && seen_keys <= blocks * (blocks / 2) * kClusterKeys ? blocks : 0;
}

// The same of a call; 0 also where clusters do not take it.
int cluster_blocks(const AttentionParams& p, const AttentionShape& shape, const Stream& stream);

// One of these for each type of the queries, in a file of its own. `tiles`: of rows.
template <class T>
void attend_cluster_of(const AttentionParams& p, int64_t tiles, int blocks, const Stream& stream);

}  // namespace headrace::cuda
