// Chooses the attention kernel of a call.
#include "headrace/ops/cuda/attention/paged_attention.h"

#include <algorithm>
#include <bit>

#include "headrace/batch/attention_plan_cache.h"
#include "headrace/ops/cuda/attention/attention_shape.h"
#include "headrace/ops/cuda/attention/sm90/decode_short_kv/short_kv.h"
#include "headrace/ops/cuda/ops.h"
#include "headrace/ops/cuda/runtime/stream.h"

namespace headrace::cuda {
namespace {

PagedSide pool_side(const TensorView& x) {
  if (!x) return {};
  return {.data = x.data(),
          .type = x.dtype(),
          .pages = x.dim(0),
          .page_stride = x.stride(0),
          .head_stride = x.stride(1),
          .slot_stride = x.stride(2)};
}

PagedSide new_side(const TensorView& x) {
  if (!x) return {};
  return {.data = x.data(), .type = x.dtype(), .page_stride = x.stride(0), .head_stride = x.stride(1)};
}

}  // namespace

AttentionParams params_of(const PagedAttentionArgs& a) {
  return {.q = a.q.data(),
          .out = a.out.data(),
          .q_type = a.q.dtype(),
          .key_type = a.key_dtype(),
          .q_token_stride = a.q.stride(0),
          .q_head_stride = a.q.stride(1),
          .out_token_stride = a.out.stride(0),
          .out_head_stride = a.out.stride(1),
          .k = pool_side(a.kv.k),
          .v = pool_side(a.kv.v),
          .k_new = new_side(a.k_new),
          .v_new = new_side(a.v_new),
          .page_table = static_cast<const int32_t*>(a.page_table.data()),
          .table_stride = a.page_table ? a.page_table.stride(0) : 0,
          .page_size = a.kv ? static_cast<int>(a.kv.page_size()) : 1,
          .page_shift = a.kv ? std::countr_zero(static_cast<unsigned>(a.kv.page_size())) : 0,
          .spans = a.on_device->spans,
          .lse = static_cast<float*>(a.lse.data()),
          .lse_stride = a.lse ? a.lse.stride(0) : 0,
          .requests = static_cast<int>(a.spans.size()),
          .tokens = static_cast<int>(a.q.dim(0)),
          .heads = static_cast<int>(a.q.dim(1)),
          .kv_heads = static_cast<int>(a.num_kv_heads()),
          .head_dim = static_cast<int>(a.q.dim(2)),
          .v_head_dim = static_cast<int>(a.out.dim(2)),
          .scale = a.scale * a.kv.k_scale,
          .cap = a.logit_cap,
          .k_scale = a.kv.k_scale,
          .v_scale = a.kv.v_scale,
          .window = a.window,
          .type = a.type,
          .encoder = a.keys == PagedAttentionArgs::Keys::kEncoder};
}

AttentionShape shape_of(const PagedAttentionArgs& a, const OpContext& context) {
  AttentionShape shape{.determinism = context.determinism};
  const int group = static_cast<int>(a.q.dim(1) / a.num_kv_heads());
  int longest = 0;
  for (const KeySpan& s : a.spans) {
    const int rows = s.q_len * group;
    shape.requests += rows > 0 ? 1 : 0;
    shape.min_rows = std::min(shape.min_rows, rows);
    shape.max_rows = std::max(shape.max_rows, rows);
    shape.tiles16 += (rows + 15) / 16;
    shape.tiles64 += (rows + 63) / 64;
    shape.tiles128 += (rows + 127) / 128;
    shape.tiles192 += (rows + 191) / 192;
    longest = std::max(longest, s.q_len);
    const bool encoder = a.keys == PagedAttentionArgs::Keys::kEncoder;
    shape.seen_keys = std::max(shape.seen_keys, encoder ? s.encoder_len : s.ctx_len + s.q_len);
  }
  // for any split of the rows: each request may end with a partial tile
  if (const int most = a.on_device->most_rows; most > 0) {
    const int64_t rows = a.q.dim(0) * group, requests = static_cast<int64_t>(a.spans.size());
    shape.min_rows = group, shape.max_rows = most * group, longest = most;
    // Assumes half of `most` rows per request. One of the spans belongs to the padding.
    shape.requests = std::clamp<int64_t>(2 * a.q.dim(0) / most, 1, std::max<int64_t>(requests - 1, 1));
    shape.tiles16 = rows / 16 + std::min(requests, a.q.dim(0)), shape.tiles64 = rows / 64 + requests;
    shape.tiles128 = rows / 128 + requests, shape.tiles192 = rows / 192 + requests;
    shape.seen_keys = a.on_device->most_keys;
  }
  const int64_t pool = a.page_table ? a.page_table.dim(1) * a.kv.page_size() : 0;
  shape.max_keys = static_cast<int>(std::min<int64_t>(pool + longest, INT32_MAX));
  if (shape.seen_keys == 0) shape.seen_keys = shape.max_keys;
  return shape;
}

namespace {

void attend(const PagedAttentionArgs& a, const OpContext& context) {
  const AttentionParams params = params_of(a);
  const AttentionShape shape = shape_of(a, context);
  AttentionPlanCache* const plans = a.on_device->plans;
  note_cluster_decode_keys(params, shape, stream_of(context), plans);
  if (paged_attention_strict_cluster(params, shape, stream_of(context))) return;
  if (paged_attention_cluster(params, shape, stream_of(context))) return;
  if (plans != nullptr) plans->note_shorter(shorter_keys(params, shape, stream_of(context)));
  if (short_kv_attention(params, shape, stream_of(context))) return;
  if (fmha_sm90(params, shape, plans, stream_of(context))) return;
  if (fmha_sm80(params, shape, stream_of(context))) return;
  simt_attention(params, stream_of(context));
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

void reference::paged_attention(const PagedAttentionArgs& a, const OpContext& context) {
  check(a);
  if (a.q.numel() == 0) return;
  simt_attention(params_of(a), stream_of(context));
}

}  // namespace headrace::cuda
