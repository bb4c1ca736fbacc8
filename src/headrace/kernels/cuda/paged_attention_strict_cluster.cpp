// Which calls clusters take in strict mode.
#include "headrace/kernels/cuda/paged_attention_strict_cluster.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "headrace/kernels/cuda/stream.h"

namespace headrace::cuda {
namespace {

int kernel_dim(const AttentionParams& p) {
  const int dim = std::max(p.head_dim, p.v_head_dim);
  return dim <= 64 ? 64 : dim <= 128 ? 128 : 256;
}

// What the sums of groups take of the stream's scratch. False where there is not enough.
bool place_slots(StrictClusterCall& call, int64_t pieces, int blocks, int max_keys, const Stream& stream) {
  call.max_groups = (max_keys + kSm90GroupKeys - 1) / kSm90GroupKeys + 1;
  const int64_t rows = pieces * call.max_groups * kStrictClusterRows;
  const int64_t values = rows * kernel_dim(call.p) * int64_t{sizeof(float)},
                states = rows * blocks * int64_t{sizeof(float2)};
  if (values + states > static_cast<int64_t>(stream.scratch_bytes)) return false;
  call.values = static_cast<float4*>(stream.scratch);
  call.states = reinterpret_cast<float2*>(static_cast<char*>(stream.scratch) + values);
  call.done = stream.counters + 2;  // behind those of the Hopper kernel's queue
  return pieces * blocks + 2 <= Stream::kCounters;
}

}  // namespace

bool paged_attention_strict_cluster(const AttentionParams& p, const AttentionShape& shape, const Stream& stream) {
  if (shape.determinism == Determinism::kFast || shape.max_rows > 64) return false;
  if (p.key_type == DType::kE4M3 || !fits_sm90(p, stream)) return false;
  const int64_t pieces = shape.tiles16 * p.kv_heads;
  const StrictClusterPlan plan = strict_cluster_plan({.pieces = pieces,
                                                      .seen_keys = shape.seen_keys,
                                                      .tile_keys = tile_keys(kernel_dim(p), 1),
                                                      .group_keys = kSm90GroupKeys},
                                                     stream.num_sms);
  if (plan.blocks == 0) return false;
  StrictClusterCall call{.p = p, .parts = plan.parts};
  if (plan.parts > 1 && !place_slots(call, pieces, plan.blocks, shape.max_keys, stream)) return false;
  const auto attend =
      p.q_type == DType::kBF16 ? attend_strict_cluster_of<__nv_bfloat16> : attend_strict_cluster_of<__half>;
  attend(call, shape.tiles16, plan.blocks, stream);
  return true;
}

}  // namespace headrace::cuda
