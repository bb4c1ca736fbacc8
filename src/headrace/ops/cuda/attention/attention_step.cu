// Kernels of an attention step. For few rows there are two: norms, rotary embedding and KV store; then attention and
// the output gate. CTAs of the second find their keys while the first runs. One kernel for everything is not faster.
#include "headrace/ops/attention_step.h"

#include "headrace/ops/cuda/arch/vec8.cuh"
#include "headrace/ops/cuda/attention/paged_attention.h"
#include "headrace/ops/cuda/attention/sm90/decode_cluster/cluster_decode.h"
#include "headrace/ops/cuda/norm/norm_rotary.h"
#include "headrace/ops/cuda/ops.h"
#include "headrace/ops/cuda/runtime/stream.h"

namespace headrace::cuda {
namespace {

void prepare(const AttentionStepArgs& a, const OpContext& context) {
  if (a.rotates() && a.stores() && norm_rotary_store(a.norm_rotary, a.store, context)) return;
  if (a.rotates()) norm_rotary(a.norm_rotary, context);
  if (a.stores()) store_kv(a.store, context);
}

// Attends and applies the gate in one kernel. Returns false and launches nothing if cluster decode does not run.
bool attend_gated(const AttentionStepArgs& a, const OpContext& context) {
  if (!is_vec8(a.gate)) return false;
  const Gate gate{.data = a.gate.data(), .token_stride = a.gate.stride(0), .head_stride = a.gate.stride(1)};
  const AttentionParams params = params_of(a.attention);
  const AttentionShape shape = shape_of(a.attention, context.determinism);
  const AttentionConfig config = choose_attention(params, shape, context);
  if (config.family != AttentionFamily::kClusterDecode) return false;
  cluster_decode(params, shape, config.cluster, gate, stream_of(context));
  return true;
}

}  // namespace

bool attention_step(const AttentionStepArgs& a, const OpContext& context) {
  check(a);
  if (a.attention.q.numel() == 0) return true;
  prepare(a, context);
  if (a.gate && attend_gated(a, context)) return true;
  paged_attention(a.attention, context);
  if (a.gate) pointwise(a.gate_of_rows(), context);
  return true;
}

}  // namespace headrace::cuda
