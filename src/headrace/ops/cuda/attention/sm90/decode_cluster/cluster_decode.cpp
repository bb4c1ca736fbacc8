// Launch of cluster decode: memory, tensor maps and instance.
#include "headrace/ops/cuda/attention/sm90/decode_cluster/cluster_decode.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "headrace/core/error.h"
#include "headrace/ops/cuda/attention/paged_attention.h"
#include "headrace/ops/cuda/attention/sm90/kv_tensor_maps.h"
#include "headrace/ops/cuda/runtime/stream.h"

namespace headrace::cuda {
namespace {

// Reserves the stream's scratch memory for partial results. The kernel merges splits in their slots even where one
// cluster computes all of them.
void place_slots(ClusterDecodeCall& call, const ClusterDecodePlan& plan, const AttentionShape& shape,
                 const Stream& stream) {
  const int64_t slots = cluster_decode_slots(plan, shape.max_keys, kSm90SplitKeys);
  const ClusterDecodeMemory memory =
      cluster_decode_memory(plan, shape.tiles16 * call.p.kv_heads, slots, call.kernel_dim);
  HR_REQUIRE(memory.values + memory.states <= static_cast<int64_t>(stream.scratch_bytes), ErrorCode::kInternal,
             "cuda paged_attention: cluster decode needs ", memory.values + memory.states, " bytes of scratch memory, ",
             stream.scratch_bytes, " are there");
  call.slots = static_cast<int>(slots);
  call.values = static_cast<float4*>(stream.scratch);
  call.states = reinterpret_cast<float2*>(static_cast<char*>(stream.scratch) + memory.values);
  call.done = stream.counters + kQueueCounters;
}

}  // namespace

void cluster_decode(const AttentionParams& p, const AttentionShape& shape, const ClusterDecodePlan& plan,
                    const Gate& gate, const Stream& stream) {
  const int largest = std::max(p.head_dim, p.v_head_dim), dim = largest <= 64 ? 64 : largest <= 128 ? 128 : 256;
  const int keys = tile_keys(dim, 1), columns = std::min(dim / plan.cluster_size, 64);
  ClusterDecodeCall call{.p = p, .splits = plan.splits, .clusters = plan.clusters, .kernel_dim = dim, .gate = gate};
  place_slots(call, plan, shape, stream);
  call.maps = {.k = map_of(p, p.k, p.head_dim, dim, keys), .v = map_of(p, p.v, p.v_head_dim, dim, keys, columns)};
  const bool few = shape.max_rows <= kFewClusterDecodeRows;
  const auto attend = p.q_type == DType::kBF16
                          ? (few ? cluster_decode_of<__nv_bfloat16, 8> : cluster_decode_of<__nv_bfloat16, 16>)
                          : (few ? cluster_decode_of<__half, 8> : cluster_decode_of<__half, 16>);
  attend(call, shape.tiles16, plan.cluster_size, stream);
}

}  // namespace headrace::cuda
