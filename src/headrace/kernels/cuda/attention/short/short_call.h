// What attention of short requests is launched with.
#pragma once
#include "headrace/kernels/cuda/attention/attention_params.h"
#include "headrace/kernels/cuda/attention/sm90/attention_sm90.h"
#include "headrace/kernels/cuda/stream.h"

namespace headrace::cuda {

struct ShortCall {
  AttentionParams p;
  KVMaps maps[2];  // for one tile of rows, and for two: of pieces of 32 and of 16 keys
  bool runs;       // requests may be of the usual kind
};

// A warp for each request and kv head (paged_attention_alone.cuh), or a block (paged_attention_sharers.cuh). One of
// each for each type of the queries, in a file of its own.
template <class T>
void attend_alone_of(const ShortCall& call, const AttentionShape& shape, const Stream& stream);
template <class T>
void attend_sharers_of(const ShortCall& call, const AttentionShape& shape, const Stream& stream);

}  // namespace headrace::cuda
