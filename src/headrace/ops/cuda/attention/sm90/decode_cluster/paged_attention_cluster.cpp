// Which calls clusters take.
#include "headrace/ops/cuda/attention/sm90/decode_cluster/paged_attention_cluster.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "headrace/ops/cuda/attention/paged_attention.h"
#include "headrace/ops/cuda/runtime/stream.h"

namespace headrace::cuda {

int cluster_blocks(const AttentionParams& p, const AttentionShape& shape, const Stream& stream) {
  if (stream.arch != 90 || shape.determinism == Determinism::kStrict || shape.max_rows > 64) return 0;
  if (p.key_type == DType::kE4M3 || !fits_sm80(p)) return 0;
  return cluster_blocks(shape.tiles16 * p.kv_heads, shape.seen_keys, std::max(p.head_dim, p.v_head_dim),
                        stream.num_sms);
}

bool paged_attention_cluster(const AttentionParams& p, const AttentionShape& shape, const Stream& stream) {
  const int blocks = cluster_blocks(p, shape, stream);
  if (blocks == 0) return false;
  const auto attend = p.q_type == DType::kBF16 ? attend_cluster_of<__nv_bfloat16> : attend_cluster_of<__half>;
  attend(p, shape.tiles16, blocks, stream);
  return true;
}

}  // namespace headrace::cuda
