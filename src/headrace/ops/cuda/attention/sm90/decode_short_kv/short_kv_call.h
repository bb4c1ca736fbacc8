// Launch parameters of short-KV decode.
#pragma once
#include "headrace/ops/cuda/attention/attention_params.h"
#include "headrace/ops/cuda/attention/sm90/fmha.h"
#include "headrace/ops/cuda/runtime/stream.h"

namespace headrace::cuda {

struct ShortCall {
  AttentionParams p;
  KVMaps maps[2];           // for one row tile and for two: slices of 32 and of 16 keys
  bool contiguous = false;  // requests may suit the contiguous-KV fast path
};

// Launch warp-per-head decode (warp_per_head.cuh) and CTA-per-head decode (cta_per_head.cuh). Each query type is
// instantiated in a file of its own.
template <class T>
void warp_per_head_of(const ShortCall& call, const AttentionShape& shape, const Stream& stream);
template <class T>
void cta_per_head_of(const ShortCall& call, const AttentionShape& shape, const Stream& stream);

}  // namespace headrace::cuda
