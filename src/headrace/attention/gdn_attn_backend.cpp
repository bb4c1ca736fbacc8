#include "headrace/attention/gdn_attn_backend.h"

#include <algorithm>

#include "headrace/core/device_runtime.h"
#include "headrace/ops/supported_heads.h"

namespace headrace {

GDNAttnBackend::GDNAttnBackend(const GDNPool& pool, const OpSet& ops, const OpContext& context, int64_t max_tokens,
                               DeviceRuntime& runtime)
    : pool_(pool),
      ops_(ops),
      context_(context),
      max_tokens_(max_tokens),
      workspace_(bytes_for(pool.config(), max_tokens), runtime) {}

int64_t GDNAttnBackend::bytes_for(const GDNPoolConfig& pool, int64_t max_tokens) {
  return (max_tokens * pool.conv_dim() + 16) * size_of(DType::kF32);
}

std::string GDNAttnBackend::describe() const { return str("causal_conv1d and gated_delta_rule ", ops_.name); }

void GDNAttnBackend::require(const RadixLinearAttentionConfig& layer) const {
  require_gdn_key_dim(ops_, layer.layer_id, layer.head_k_dim);
  require_float(ops_, layer.layer_id, "weights of a Gated DeltaNet convolution", layer.conv_weight.dtype());
  require_float(ops_, layer.layer_id, "states of a Gated DeltaNet convolution", pool_.config().conv_dtype);
}

void GDNAttnBackend::init_forward_metadata(const ForwardBatch& batch) {
  if (batch.mode == ForwardMode::kIdle) return;
  HR_REQUIRE(batch.num_tokens() <= max_tokens_, ErrorCode::kInvalidArgument, "gdn backend: the batch has ",
             batch.num_tokens(), " tokens, the backend was built for ", max_tokens_);
  HR_REQUIRE(batch.attn.state_slots.size() == batch.attn.spans.size(), ErrorCode::kInvalidArgument,
             "gdn backend: the batch has ", batch.attn.state_slots.size(), " state slots for ", batch.attn.spans.size(),
             " requests");
  metadata_.cache_indices.clear(), metadata_.cu_seqlens.clear();
  one_token_each_ = std::ranges::all_of(batch.attn.spans, [](const KeySpan& span) { return span.q_len == 1; });
  for (const StateSlots& slots : batch.attn.state_slots) metadata_.cache_indices.push_back(slots.write);
  if (!is_extend(batch.mode)) return;
  for (const KeySpan& span : batch.attn.spans) metadata_.cu_seqlens.push_back(span.q_off);
  metadata_.cu_seqlens.push_back(batch.num_tokens());
}

void GDNAttnBackend::init_graph_state(int32_t max_bs, int32_t) {
  metadata_.cache_indices.reserve(static_cast<size_t>(max_bs));
  metadata_.cu_seqlens.reserve(static_cast<size_t>(max_bs) + 1);
}

bool GDNAttnBackend::forward_fused(const RadixLinearAttention& layer, const GDNInputs& in, const ForwardBatch& batch,
                                   const TensorView& out) const {
  if (!one_token_each_ || !batch.attn.snapshots.empty()) return false;
  const RadixLinearAttentionConfig& c = layer.config();
  const GDNLayerView state = pool_.layer(c.gdn_layer_idx);
  return ops_.gdn_step({.x = in.mixed_qkv,
                        .conv_weight = c.conv_weight,
                        .conv_state = state.conv,
                        .a = in.a,
                        .b = in.b,
                        .a_log = c.a_log,
                        .dt_bias = c.dt_bias,
                        .state = state.recurrent,
                        .num_k_heads = c.num_k_heads,
                        .spans = batch.attn.spans,
                        .slots = batch.attn.state_slots,
                        .on_device = batch.attn.on_device,
                        .norm = in.norm,
                        .out = out},
                       context_);
}

void GDNAttnBackend::forward(const RadixLinearAttention& layer, const GDNInputs& in, const ForwardBatch& batch,
                             const TensorView& out) {
  if (forward_fused(layer, in, batch, out)) return;
  const RadixLinearAttentionConfig& c = layer.config();
  const GDNLayerView state = pool_.layer(c.gdn_layer_idx);
  workspace_.reset();
  const TensorView convolved = workspace_.take(in.mixed_qkv.dtype(), in.mixed_qkv.shape());
  ops_.causal_conv1d({.x = in.mixed_qkv,
                      .weight = c.conv_weight,
                      .state = state.conv,
                      .spans = batch.attn.spans,
                      .slots = batch.attn.state_slots,
                      .snapshots = batch.attn.snapshots,
                      .on_device = batch.attn.on_device,
                      .out = convolved},
                     context_);
  ops_.gated_delta_rule({.qkv = convolved,
                         .a = in.a,
                         .b = in.b,
                         .a_log = c.a_log,
                         .dt_bias = c.dt_bias,
                         .state = state.recurrent,
                         .num_k_heads = c.num_k_heads,
                         .spans = batch.attn.spans,
                         .slots = batch.attn.state_slots,
                         .snapshots = batch.attn.snapshots,
                         .on_device = batch.attn.on_device,
                         .out = out},
                        context_);
  if (!in.norm) return;
  ops_.rms_norm({.x = out, .weight = in.norm.weight, .gate = in.norm.gate, .eps = in.norm.eps, .out = out}, context_);
}

}  // namespace headrace
