#include "headrace/models/causal_lm.h"

#include <cstring>
#include <utility>

#include "headrace/layers/kv_scales.h"
#include "headrace/layers/token_merge.h"
#include "headrace/ops/supported_heads.h"

namespace headrace {
ModelInfo causal_lm_info(const ModelConfig& c, DType dtype) {
  ModelInfo info{.architecture = c.architecture,
                 .vocab_size = static_cast<int32_t>(c.vocab),
                 .context_length = c.context_length,
                 .num_layers = c.num_layers,
                 .eos_ids = c.eos_ids,
                 .dtype = dtype,
                 .diffusion = c.diffusion};
  for (int32_t i = 0; i < c.num_layers; ++i) {
    if (c.layer_types[static_cast<size_t>(i)] == LayerType::kFullAttention) {
      info.full_attn_layer_ids.push_back(i);
    } else {
      ++info.num_gdn_layers;
    }
  }
  info.kv_groups = {{{c.attention.num_kv_heads, c.attention.head_dim, c.attention.head_dim}, info.full_attn_layer_ids}};
  if (!info.full_attn_layer_ids.empty()) {
    info.attention_kinds = {c.attention.attention()};
    info.attention_kinds[0].layer_id = info.full_attn_layer_ids[0];
  }
  if (!c.moe_layers.empty()) {
    info.experts.count = static_cast<int32_t>(c.moe.router.num_experts);
    info.experts.per_token = static_cast<int32_t>(c.moe.router.experts_per_token);
  }
  info.gdn = {.num_layers = info.num_gdn_layers,
              .num_k_heads = c.gdn.num_k_heads,
              .num_v_heads = c.gdn.num_v_heads,
              .head_k_dim = c.gdn.head_k_dim,
              .head_v_dim = c.gdn.head_v_dim,
              .conv_kernel_size = c.gdn.conv_kernel,
              .conv_dtype = dtype};
  return info;
}

CausalLM::CausalLM(const ModelConfig& c, Checkpoint checkpoint, const LayerContext& context)
    : checkpoint_(std::move(checkpoint)),
      context_(context),
      info_(causal_lm_info(c, context.dtype)),
      rotary_(c.rotary, c.attention.head_dim, *context.runtime) {
  require_vocab(*context.ops, c.vocab);
  const TextWeights weights = find_text_weights(checkpoint_);
  embedding_ = weights.body.scope("embed_tokens").weight("weight", {c.vocab, c.hidden}, {.stddev = 0.05});
  blocks_.reserve(static_cast<size_t>(c.num_layers));
  for (int32_t i = 0; i < c.num_layers; ++i) add_block(weights.body.scope(str("layers.", i)), c, i);
  norm_ = RMSNorm(weights.body, "norm", c.hidden, c.eps, c.norm_form);
  if (c.tied_head) check_tied_head(weights, {c.vocab, c.hidden});
  head_ = c.tied_head ? Linear(embedding_, {}) : Linear(weights.head, "lm_head", c.vocab, c.hidden);
  if (!checkpoint_.is_random()) checkpoint_.require_all_used();
  info_.weight_bytes = checkpoint_.stored_bytes();
  info_.num_parameters = checkpoint_.num_elements();
  info_.packed_formats = checkpoint_.packed_formats();
  if (!c.tied_head) info_.gathered_bytes = embedding_.bytes();
}

void CausalLM::add_block(const WeightScope& scope, const ModelConfig& c, int32_t layer) {
  require_float(*context_.ops, layer, "activations", context_.dtype);
  Block block;
  block.input_norm = RMSNorm(scope, "input_layernorm", c.hidden, c.eps, c.norm_form);
  block.post_norm = RMSNorm(scope, "post_attention_layernorm", c.hidden, c.eps, c.norm_form);
  if (c.layer_types[static_cast<size_t>(layer)] == LayerType::kFullAttention) {
    SelfAttentionConfig attention = c.attention;
    attention.layer_id = layer;
    require_head_dim(*context_.ops, layer, attention.head_dim);
    block.attention.emplace(scope.scope("self_attn"), attention, rotary_);
    if (const auto scales = kv_scales(scope.scope("self_attn"), layer)) info_.kv_scales.push_back(*scales);
  } else {
    GatedDeltaNetConfig gdn = c.gdn;
    gdn.layer_id = layer;
    require_gdn_key_dim(*context_.ops, layer, gdn.head_k_dim);
    require_conv_width(*context_.ops, layer, gdn.conv_kernel);
    for (const Block& before : blocks_) gdn.gdn_layer_idx += before.gdn ? 1 : 0;
    block.gdn.emplace(scope.scope("linear_attn"), gdn);
  }
  if (!c.moe_layers.empty() && c.moe_layers[static_cast<size_t>(layer)]) {
    require_experts(*context_.ops, layer, c.moe.router.num_experts);
    block.moe.emplace(scope.scope("mlp"), c.moe);
    const auto& router = c.moe.router;
    info_.experts = {info_.experts.bytes + block.moe->expert_bytes(), static_cast<int32_t>(router.num_experts),
                     static_cast<int32_t>(router.experts_per_token)};
  } else {
    block.mlp.emplace(scope.scope("mlp"), c.hidden, c.intermediate);
  }
  blocks_.push_back(std::move(block));
}

void CausalLM::run_mixer(const LayerContext& context, const Block& block, const TensorView& x,
                         const ForwardBatch& batch) const {
  if (block.attention) {
    block.attention->add_to(context, block.input_norm, x, batch);
  } else {
    block.gdn->add_to(context, block.input_norm, x, batch);
  }
}

void CausalLM::run_mlp(const LayerContext& context, const Block& block, const TensorView& x,
                       const ForwardBatch& batch) const {
  if (block.mlp) return block.mlp->add_to(context, block.post_norm, x);
  run_gemms(context);
  const Tensor normed = block.post_norm(context, x);
  block.moe->add_to(context, {.x = normed, .routed_by = {}, .num_rows = batch.device_num_rows}, x);
}

// Gathers the rows that have logits, by the op embedding with x as its table.
Tensor CausalLM::rows_of_logits(const LayerContext& context, const TensorView& x, const ForwardBatch& batch) const {
  run_gemms(context);
  const auto count = static_cast<int64_t>(batch.logits_rows.size());
  const TensorView rows = context.on_cpu()
                              ? TensorView(const_cast<int32_t*>(batch.logits_rows.data()), DType::kI32, {count})
                              : batch.device_logits_rows;
  Tensor wanted = context.make({count, x.dim(1)});
  if (count > 0) context.ops->embedding({.ids = rows, .table = x, .out = wanted}, context.op);
  return wanted;
}

Tensor CausalLM::logits(const LayerContext& context, const TensorView& rows) const {
  Tensor out = context.make(DType::kF32, {rows.dim(0), info_.vocab_size});
  FusedLinearArgs head = norm_.before_products(rows);
  head.products = {head_.product(out)};
  add_gemm(context, head);
  run_gemms(context);
  return out;
}

Tensor CausalLM::forward(const ForwardBatch& batch) const {
  PendingGemms gemms;
  LayerContext context = context_;
  context.gemms = &gemms;
  const Tensor x = context.make({batch.num_tokens(), embedding_.dim(1)});
  context.ops->embedding({.ids = batch.input_ids, .table = embedding_, .out = x}, context.op);
  HR_REQUIRE(!batch.soft.self_conditioning, ErrorCode::kInvalidArgument, info_.architecture,
             " takes no self-conditioning");
  merge_tokens(context, batch.soft, embedding_, x);
  for (size_t i = 0; i + 1 < blocks_.size(); ++i) {
    run_mixer(context, blocks_[i], x, batch);
    run_mlp(context, blocks_[i], x, batch);
  }
  return logits(context, run_last_block(context, x, batch));
}

// The last layer's output is needed only for tokens with logits: one of a prompt's last chunk, none of earlier chunks,
// which only store K and V.
Tensor CausalLM::run_last_block(const LayerContext& context, const TensorView& x, const ForwardBatch& batch) const {
  const Block& last = blocks_.back();
  if (batch.logits_rows.empty() && last.attention) {
    last.attention->store(context, last.input_norm, x, batch);
    return rows_of_logits(context, x, batch);
  }
  run_mixer(context, last, x, batch);
  // At most kFewRows rows cost as much as one, so they stay together and GEMMs follow one another without a gather.
  // Experts count the tokens of the batch.
  constexpr int64_t kFewRows = 8;
  const bool gathered_last = last.moe || x.dim(0) <= kFewRows;
  if (gathered_last) run_mlp(context, last, x, batch);
  Tensor rows = rows_of_logits(context, x, batch);
  if (!gathered_last && rows.dim(0) > 0) run_mlp(context, last, rows, batch);
  return rows;
}

}  // namespace headrace
