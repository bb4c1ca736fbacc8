// Launch parameters of cluster decode.
#pragma once
#include <cstdint>

#include "headrace/ops/cuda/attention/sm90/decode_cluster/cluster_decode_plan.h"
#include "headrace/ops/cuda/attention/sm90/fmha.h"

namespace headrace::cuda {

// Output gate [tokens, heads, v_head_dim] of the queries' type; results are multiplied by its sigmoid. Null data: no
// gate.
struct Gate {
  const void* data = nullptr;
  int64_t token_stride = 0, head_stride = 0;
};

struct ClusterDecodeCall {
  AttentionParams p;
  KVSplits splits = KVSplits::kFixed;
  int clusters = 1, slots = 1;  // as planned: of a row tile, and its partial results
  // Partial results. The memory belongs to the stream.
  float4* values = nullptr;  // [work tiles, slots, CTAs of a cluster, rows of a CTA's columns]
  float2* states = nullptr;  // [work tiles, slots, CTAs of a cluster, rows]: largest score (base 2), sum
  uint32_t* done = nullptr;  // [work tiles, CTAs of a cluster]: clusters that are done; zero between calls
  KVMaps maps{};             // values in TMA boxes of a CTA's columns, of up to 64
  int kernel_dim = 0;        // 64, 128 or 256
  Gate gate{};
};

// Launches the kernel. T: query type; kRows: rows of a CTA, 8 or 16; tiles: row tiles. Each is instantiated in a file
// of its own, because it compiles slowly.
template <class T, int kRows>
void cluster_decode_of(const ClusterDecodeCall& call, int64_t tiles, int cluster_size, const Stream& stream);

}  // namespace headrace::cuda
