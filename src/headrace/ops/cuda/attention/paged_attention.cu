// Runs the attention kernel that choose_attention() names.
#include "headrace/ops/cuda/attention/paged_attention.h"

#include <algorithm>

#include "headrace/batch/attention_plan_cache.h"
#include "headrace/ops/cuda/attention/sm90/decode_cluster/cluster_decode.h"
#include "headrace/ops/cuda/ops.h"
#include "headrace/ops/cuda/runtime/stream.h"

namespace headrace::cuda {

AttentionConfig choose_attention(const AttentionParams& params, const AttentionShape& shape, const OpContext& context) {
  const DeviceProperties device = stream_of(context).properties();
  return choose_attention(problem_of(params, shape), device, AttentionFamilies(context.leave_out));
}

namespace {

void attend(const PagedAttentionArgs& a, const OpContext& context) {
  const AttentionParams params = params_of(a);
  const AttentionShape shape = shape_of(a, context.determinism);
  const AttentionConfig config = choose_attention(params, shape, context);
  const Stream& stream = stream_of(context);
  switch (config.family) {
    case AttentionFamily::kClusterDecode: return cluster_decode(params, shape, config.cluster, {}, stream);
    case AttentionFamily::kShortKV: return short_kv_decode(params, shape, config, stream);
    case AttentionFamily::kFp8Decode:
    case AttentionFamily::kFmhaSm90: return fmha_sm90(params, shape, config, a.on_device->plans, stream);
    case AttentionFamily::kFmhaSm80: return fmha_sm80(params, shape, stream);
    case AttentionFamily::kSimt: return simt_attention(params, stream);
  }
}

// Returns a view of `count` heads of x, every `step`-th from `first` on.
TensorView heads_of(const TensorView& x, int64_t first, int64_t count, int64_t step) {
  if (!x) return x;
  Shape shape = x.shape(), strides = x.strides();
  shape[1] = count, strides[1] *= step;
  return {x.narrow(1, first, first + 1).data(), x.dtype(), shape, strides, x.device()};
}

// Makes one pass over K and V per query head of a GQA group, for all KV heads at once. If log-sum-exps are requested,
// each pass covers one KV head, because kernels write the log-sum-exps of adjacent heads.
void attend_per_head(const PagedAttentionArgs& a, const OpContext& context) {
  const int64_t kv_heads = a.num_kv_heads(), group = a.q.dim(1) / kv_heads, count = a.lse ? 1 : kv_heads;
  PagedAttentionArgs pass = a;
  for (int64_t kv_head = 0; kv_head < kv_heads; kv_head += count) {
    for (TensorView PagedAttentionArgs::*x : {&PagedAttentionArgs::k_new, &PagedAttentionArgs::v_new}) {
      pass.*x = heads_of(a.*x, kv_head, count, 1);
    }
    pass.kv.k = heads_of(a.kv.k, kv_head, count, 1), pass.kv.v = heads_of(a.kv.v, kv_head, count, 1);
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      pass.q = heads_of(a.q, head, count, group), pass.out = heads_of(a.out, head, count, group);
      pass.lse = heads_of(a.lse, head, count, group);
      attend(pass, context);
    }
  }
}

}  // namespace

void paged_attention(const PagedAttentionArgs& a, const OpContext& context) {
  check(a);
  if (a.q.numel() == 0) return;
  a.grouping == HeadGrouping::kPerHead ? attend_per_head(a, context) : attend(a, context);
}

std::vector<int32_t> kv_len_buckets(const PagedAttentionArgs& a, const OpContext& context) {
  PagedAttentionArgs pass = a;
  if (a.grouping == HeadGrouping::kPerHead) {  // a pass has one query head per KV head
    for (TensorView* x : {&pass.q, &pass.out})
      *x = {x->data(), x->dtype(), {x->dim(0), a.num_kv_heads(), x->dim(2)}, x->device()};
  }
  const AttentionShape shape = shape_of(pass, context.determinism);
  return kv_len_buckets(problem_of(params_of(pass), shape), stream_of(context).properties(),
                        AttentionFamilies(context.leave_out));
}

void reference::paged_attention(const PagedAttentionArgs& a, const OpContext& context) {
  check(a);
  if (a.q.numel() == 0) return;
  simt_attention(params_of(a), stream_of(context));
}

}  // namespace headrace::cuda
