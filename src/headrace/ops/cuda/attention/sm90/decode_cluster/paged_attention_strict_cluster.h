// What clusters that attend in strict mode are launched with.
#pragma once
#include <cstdint>

#include "headrace/ops/cuda/attention/sm90/decode_cluster/strict_cluster_plan.h"
#include "headrace/ops/cuda/attention/sm90/fmha.h"

namespace headrace::cuda {

// Whether a row's groups are strict mode's, or each of its clusters has one of the length that its keys make.
enum class Groups : uint8_t { kStrict, kShares };

struct StrictClusterCall {
  AttentionParams p;
  Groups groups = Groups::kStrict;
  int parts = 1, max_groups = 1;  // as planned; of a row's keys, each with a slot where there are several parts
  float4* values = nullptr;       // [pieces, max_groups, blocks, 16 rows of a block's columns]
  float2* states = nullptr;       // [pieces, max_groups, blocks, 16]: largest score (base 2), sum
  uint32_t* done = nullptr;       // [pieces, blocks] parts; zero between calls
};

// Of [tokens, heads, v_head_dim], of the queries' type: results are multiplied by sigmoid of it. Null: they are not.
struct Gate {
  const void* data = nullptr;
  int64_t token_stride = 0, head_stride = 0;
};

struct ClusterDecodeCall : StrictClusterCall {
  KVMaps maps{};       // values in boxes of a block's columns, of up to 64
  int kernel_dim = 0;  // 64, 128 or 256
  Gate gate{};
};

// Attention and the gate, where streams take the rows. False when they do not.
bool paged_attention_gated(const AttentionParams& params, const Gate& gate, const AttentionShape& shape,
                           const Stream& stream);

// One of these for each type of the queries, in a file of its own. `tiles`: of rows.
template <class T>
void attend_strict_cluster_of(const StrictClusterCall& call, int64_t tiles, int blocks, const Stream& stream);
template <class T, int kRows>
void cluster_decode_of(const ClusterDecodeCall& call, int64_t tiles, int blocks, const Stream& stream);

}  // namespace headrace::cuda
