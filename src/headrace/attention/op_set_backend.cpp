#include "headrace/attention/op_set_backend.h"

#include <algorithm>
#include <utility>

#include "headrace/core/device_runtime.h"
#include "headrace/ops/supported_heads.h"

namespace headrace {
namespace {

Tensor one_on(DeviceRuntime& runtime) {
  Tensor one(DType::kF32, {1});
  set_element(one, 0, 1);
  return copied_to(runtime, std::move(one));
}

}  // namespace

OpSetBackend::OpSetBackend(std::string_view name, const OpSet& ops, const KVPool& pool, const OpContext& context,
                           AttnImpl attn_impl, DeviceRuntime& runtime)
    : name_(name),
      ops_(ops),
      pool_(pool),
      context_(context),
      attn_impl_(attn_impl),
      runtime_(runtime),
      one_(one_on(runtime)) {}

std::string OpSetBackend::describe() const {
  return str(name_, ": paged_attention ", ops_.name, " (", name_of(attn_impl_), ")");
}

void OpSetBackend::require(const RadixAttentionConfig& layer) const {
  require_head_dim(ops_, layer.layer_id, std::max(layer.head_dim, layer.v_head_dim.value_or(0)));
}

std::vector<int32_t> OpSetBackend::kv_len_buckets_of(const ForwardBatch& batch, const RadixAttentionConfig& layer,
                                                     DType dtype) const {
  const int64_t tokens = batch.num_tokens(), v_head_dim = layer.v_head_dim.value_or(layer.head_dim);
  const bool cross = layer.is_cross_attention == RadixAttentionConfig::KeySource::kCrossAttention;
  return ops_.kv_len_buckets(
      {.q = TensorView(nullptr, dtype, {tokens, layer.num_heads, layer.head_dim}, runtime_.device()),
       .kv = pool_.layer(layer.layer_id),
       .spans = batch.attn.spans,
       .on_device = batch.attn.on_device,
       .page_table = batch.attn.page_table,
       .scale = layer.scaling,
       .logit_cap = layer.logit_cap,
       .window = layer.sliding_window_size.value_or(kNoWindow),
       .type = layer.attn_type,
       .keys = cross ? PagedAttentionArgs::Keys::kEncoder : PagedAttentionArgs::Keys::kSequence,
       .grouping = attn_impl_ == AttnImpl::kOptimized ? HeadGrouping::kPerHead : HeadGrouping::kGrouped,
       .out = TensorView(nullptr, dtype, {tokens, layer.num_heads, v_head_dim}, runtime_.device())},
      context_);
}

void OpSetBackend::validate(const ForwardBatch& batch) const {
  batch.attn.validate(pool_.empty() ? 0 : pool_.page_size(), int64_t{pool_.num_pages()} + 1);
}

void OpSetBackend::plan(const ForwardBatch& batch) {
  if (batch.mode == ForwardMode::kIdle) return;  // forward() reads none of it
  HR_REQUIRE(runtime_.device().type == DeviceType::kCPU || batch.attn.on_device != nullptr, ErrorCode::kInvalidArgument,
             "attention backend '", name_, "': the batch lies on the host; give it through a DeviceBatch");
}

// Copies heads by multiplying with one: a single call if the heads of all tokens are equally strided.
void OpSetBackend::copy_heads(const TensorView& from, const TensorView& to) const {
  const int64_t tokens = from.dim(0), heads = from.dim(1), dim = from.dim(2);
  const bool even = from.stride(0) == heads * from.stride(1) && to.stride(0) == heads * to.stride(1);
  const int64_t rows = even ? tokens * heads : tokens;
  const auto rows_of = [&](const TensorView& x, int64_t head) {
    return TensorView(x.narrow(1, head, head + 1).data(), x.dtype(), {rows, dim}, {x.stride(even ? 1 : 0), 1},
                      x.device());
  };
  const TensorView one(one_.data(), DType::kF32, {rows, 1}, {0, 1}, runtime_.device());
  for (int64_t h = 0; h < (even ? 1 : heads); ++h) {
    ops_.pointwise({.kind = PointwiseKind::kMul, .x = one, .y = rows_of(from, h), .out = rows_of(to, h)}, context_);
  }
}

// Concatenates x | rope along the last dimension: an added score term is a longer dot product.
Tensor OpSetBackend::with_rope(const TensorView& x, const TensorView& rope) const {
  HR_REQUIRE(rope.dtype() == x.dtype() && rope.dim(0) == x.dim(0), ErrorCode::kInvalidArgument,
             "attention: rope part is ", name_of(rope.dtype()), rope.shape(), ", expected rows and dtype of ",
             name_of(x.dtype()), x.shape());
  const int64_t dim = x.dim(2), all = dim + rope.dim(2);
  Tensor joined(x.dtype(), {x.dim(0), x.dim(1), all}, runtime_);
  if (x.dim(0) == 0) return joined;
  copy_heads(x, joined.view().narrow(2, 0, dim));
  copy_heads(rope, joined.view().narrow(2, dim, all));
  return joined;
}

Attention OpSetBackend::attention_of(const RadixAttentionConfig& c) {
  using Keys = PagedAttentionArgs::Keys;
  const bool cross = c.is_cross_attention == RadixAttentionConfig::KeySource::kCrossAttention;
  Attention attention({.num_heads = c.num_heads,
                       .head_dim = c.head_dim,
                       .scale = c.scaling,
                       .num_kv_heads = c.num_kv_heads,
                       .attn_impl = attn_impl_,
                       .sliding_window = c.sliding_window_size,
                       .context = context_,
                       .ops = &ops_,
                       .logit_cap = c.logit_cap,
                       .attn_type = c.attn_type,
                       .keys = cross ? Keys::kEncoder : Keys::kSequence},
                      metadata_source());
  if (c.attn_type != AttentionType::kEncoderOnly) attention.bind_kv_cache(pool_.layer(c.layer_id));
  return attention;
}

// Layers may share an id, such as those of a draft model and its target: the last one that ran is kept.
const Attention& OpSetBackend::find_attention(const RadixAttentionConfig& c) {
  const auto found = layers_.find(c.layer_id);
  if (found != layers_.end() && found->second.config == c) return found->second.attention;
  if (found != layers_.end()) layers_.erase(found);
  return layers_.emplace(c.layer_id, Layer{c, attention_of(c)}).first->second.attention;
}

void OpSetBackend::forward_extend(const RadixAttention& layer, const AttnInputs& in, const ForwardBatch& batch,
                                  const TensorView& out) {
  const RadixAttentionOptions& options = in.options;
  const Tensor q = options.q_rope ? with_rope(in.q, options.q_rope) : Tensor();
  const Tensor k = options.k_rope ? with_rope(in.k, options.k_rope) : Tensor();
  find_attention(layer.config())
      .forward(batch.attn, q ? q.view() : in.q, k ? k.view() : in.k, in.v, out,
               {.save_kv_cache = options.save_kv_cache,
                .lse = options.lse,
                .norm_rotary = options.norm_rotary,
                .gate = options.gate});
}

}  // namespace headrace
