// Which calls strict mode's clusters take, in its order of sums or, in fast mode, in shares of their own.
#include "headrace/ops/cuda/attention/sm90/decode_cluster/paged_attention_strict_cluster.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "headrace/batch/attention_plan_cache.h"
#include "headrace/ops/cuda/attention/paged_attention.h"
#include "headrace/ops/cuda/attention/sm90/decode_cluster/larger_clusters.h"
#include "headrace/ops/cuda/attention/sm90/decode_cluster/paged_attention_cluster.h"
#include "headrace/ops/cuda/attention/sm90/kv_tensor_maps.h"
#include "headrace/ops/cuda/runtime/stream.h"

namespace headrace::cuda {
namespace {

int kernel_dim(const AttentionParams& p) {
  const int dim = std::max(p.head_dim, p.v_head_dim);
  return dim <= 64 ? 64 : dim <= 128 ? 128 : 256;
}

StrictClusterTask task_of(const AttentionParams& p, const AttentionShape& shape) {
  return {.pieces = shape.tiles16 * p.kv_heads,
          .tiles = shape.tiles16,
          .seen_keys = shape.seen_keys,
          .tile_keys = tile_keys(kernel_dim(p), 1),
          .group_keys = kSm90GroupKeys};
}

// What the sums of groups take of the stream's scratch. False where there is not enough.
bool place_slots(StrictClusterCall& call, int64_t pieces, int blocks, int max_keys, const Stream& stream) {
  call.max_groups = call.groups == Groups::kShares
                        ? call.parts
                        : (max_keys + kSm90GroupKeys - 1) / kSm90GroupKeys + 3;  // new keys may lie apart
  const int64_t rows = pieces * call.max_groups * kStrictClusterRows;
  const int64_t values = rows * kernel_dim(call.p) * int64_t{sizeof(float)},
                states = rows * blocks * int64_t{sizeof(float2)};
  if (values + states > static_cast<int64_t>(stream.scratch_bytes)) return false;
  call.values = static_cast<float4*>(stream.scratch);
  call.states = reinterpret_cast<float2*>(static_cast<char*>(stream.scratch) + values);
  call.done = stream.counters + 2;  // behind those of the Hopper kernel's queue
  return pieces * blocks + 2 <= Stream::kCounters;
}

// Whether each cluster has a share of a row's keys: fast mode, up to 16 rows, which are one request's.
bool takes_shares(const AttentionShape& shape) {
  return shape.determinism == Determinism::kFast && shape.tiles16 == 1 &&
         shape.seen_keys > keys_in_groups(shape.max_rows);
}

// Rows of a request in blocks of up to 8, where none has more, or of 16.
bool attend_by_cluster_decode(const AttentionParams& p, const Gate& gate, const AttentionShape& shape,
                              const Stream& stream) {
  const StrictClusterTask task = task_of(p, shape);
  const int dim = kernel_dim(p);
  const bool few = shape.max_rows <= kClusterDecodeRows;
  const bool shares = takes_shares(shape);
  const StrictClusterPlan plan = shares
                                     ? even_cluster_decode_plan(task.pieces, cluster_decode_blocks(dim), stream.num_sms)
                                     : cluster_decode_plan(task, cluster_decode_blocks(dim), stream.num_sms);
  ClusterDecodeCall call{{.p = p, .groups = shares ? Groups::kShares : Groups::kStrict, .parts = plan.parts}};
  // The kernel adds up groups in their slots even where one cluster finds them all.
  if (plan.blocks == 0 || !place_slots(call, task.pieces, plan.blocks, shape.max_keys, stream)) return false;
  call.kernel_dim = dim, call.gate = gate;
  call.maps = {.k = map_of(p, p.k, p.head_dim, dim, task.tile_keys),
               .v = map_of(p, p.v, p.v_head_dim, dim, task.tile_keys, std::min(dim / plan.blocks, 64))};
  const auto attend = p.q_type == DType::kBF16
                          ? (few ? cluster_decode_of<__nv_bfloat16, 8> : cluster_decode_of<__nv_bfloat16, 16>)
                          : (few ? cluster_decode_of<__half, 8> : cluster_decode_of<__half, 16>);
  attend(call, shape.tiles16, plan.blocks, stream);
  return true;
}

bool takes_cluster_decode(const AttentionParams& p, const AttentionShape& shape, const Stream& stream) {
  if (shape.max_rows > kMostClusterDecodeRows || p.key_type == DType::kE4M3 || !fits_sm90(p, stream)) return false;
  return shape.determinism == Determinism::kStrict || takes_shares(shape) ||
         cluster_decode_is_fast({.seen_keys = shape.seen_keys,
                                 .max_rows = shape.max_rows,
                                 .requests = shape.requests,
                                 .tokens = p.tokens,
                                 .clusters = cluster_blocks(p, shape, stream) > 0});
}

// Blocks of a cluster where streams take a call in groups; 0: not so. Shares are the same for any number of keys.
int group_blocks(const AttentionParams& p, const AttentionShape& shape, const Stream& stream) {
  if (!takes_cluster_decode(p, shape, stream) || takes_shares(shape)) return 0;
  return cluster_decode_plan(task_of(p, shape), cluster_decode_blocks(kernel_dim(p)), stream.num_sms).blocks;
}

}  // namespace

void note_cluster_decode_keys(const AttentionParams& p, const AttentionShape& shape, const Stream& stream,
                              AttentionPlanCache* plans) {
  if (plans == nullptr || shape.tiles16 == 0) return;
  const auto blocks_for = [&](int keys) {
    AttentionShape shorter = shape;
    shorter.seen_keys = keys;
    return group_blocks(p, shorter, stream);
  };
  // In fast mode the smallest are fast enough: what they leave of the device, the products behind them begin on.
  const int most = shape.determinism == Determinism::kStrict ? cluster_decode_blocks(kernel_dim(p)) : 2;
  const StrictClusterTask task = task_of(p, shape);
  for (const int keys :
       keys_of_larger_clusters(task, most, keys_in_groups(shape.max_rows), stream.num_sms, blocks_for)) {
    plans->note_shorter(keys);
  }
}

bool paged_attention_gated(const AttentionParams& p, const Gate& gate, const AttentionShape& shape,
                           const Stream& stream) {
  return takes_cluster_decode(p, shape, stream) && attend_by_cluster_decode(p, gate, shape, stream);
}

bool paged_attention_strict_cluster(const AttentionParams& p, const AttentionShape& shape, const Stream& stream) {
  if (shape.max_rows > 64 || p.key_type == DType::kE4M3 || !fits_sm90(p, stream)) return false;
  const StrictClusterTask task = task_of(p, shape);
  const bool strict = shape.determinism == Determinism::kStrict;
  if (takes_cluster_decode(p, shape, stream) && attend_by_cluster_decode(p, {}, shape, stream)) return true;
  // Half floats in strict mode and of so many rows are not worth half a minute of compiling.
  if (!strict || shape.max_rows <= kClusterDecodeRows || p.q_type != DType::kBF16) return false;
  const StrictClusterPlan plan = strict_cluster_plan(task, stream.num_sms);
  if (plan.blocks == 0) return false;
  StrictClusterCall call{.p = p, .parts = plan.parts};
  if (plan.parts > 1 && !place_slots(call, task.pieces, plan.blocks, shape.max_keys, stream)) return false;
  attend_strict_cluster_of<__nv_bfloat16>(call, shape.tiles16, plan.blocks, stream);
  return true;
}

}  // namespace headrace::cuda
