// What the Hopper attention kernels are launched with.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "headrace/kernels/cuda/paged_attention.h"

namespace headrace::cuda {

struct KVMaps {
  CUtensorMap k, v;  // of [pages, heads, slots, dim]: boxes of 64 elements by the slots of a page that a tile takes
};

// How keys are cut into parts, and where the parts' results go.
struct PartPlan {
  int max_parts = 1;            // of a tile of rows; 1: keys are not cut
  int least_tiles = 8;          // of keys in a part
  int rounds = 6;               // parts that each block of threads should get
  float* values = nullptr;      // [tokens, heads, max_parts, v_head_dim], not yet divided by the sum
  float2* states = nullptr;     // [tokens, heads, max_parts]: largest score (base 2), sum
  uint32_t* arrived = nullptr;  // by tile of rows and kv head: parts done; zero between calls
  uint32_t* queue = nullptr;    // pieces taken from the queue, blocks that are done; zero between calls
};

// One of these for each head size, in a file of its own: they are slow to compile. max_rows: of a request, packed as
// (token, query head of the group).
void attend_sm90_64(const KVMaps& maps, const AttentionParams& p, const PartPlan& plan, int max_rows,
                    const Stream& stream);
void attend_sm90_128(const KVMaps& maps, const AttentionParams& p, const PartPlan& plan, int max_rows,
                     const Stream& stream);
void attend_sm90_256(const KVMaps& maps, const AttentionParams& p, const PartPlan& plan, int max_rows,
                     const Stream& stream);

}  // namespace headrace::cuda
