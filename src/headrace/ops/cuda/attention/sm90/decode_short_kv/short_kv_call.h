// What attention of short requests is launched with.
#pragma once
#include "headrace/ops/cuda/attention/attention_params.h"
#include "headrace/ops/cuda/attention/sm90/fmha.h"
#include "headrace/ops/cuda/runtime/stream.h"

namespace headrace::cuda {

struct ShortCall {
  AttentionParams p;
  KVMaps maps[2];  // for one tile of rows, and for two: of pieces of 32 and of 16 keys
  bool runs;       // requests may be of the usual kind
};

// A warp for each request and kv head (warp_per_head.cuh), or a block (cta_per_head.cuh). One of
// each for each type of the queries, in a file of its own.
template <class T>
void warp_per_head_of(const ShortCall& call, const AttentionShape& shape, const Stream& stream);
template <class T>
void cta_per_head_of(const ShortCall& call, const AttentionShape& shape, const Stream& stream);

}  // namespace headrace::cuda
