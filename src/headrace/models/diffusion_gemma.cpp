#include "headrace/models/diffusion_gemma.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "headrace/core/device_runtime.h"
#include "headrace/layers/soft_embedding.h"
#include "headrace/ops/supported_heads.h"

namespace headrace {
namespace {

constexpr const char* kDecoder = "model.decoder.";
constexpr const char* kEncoder = "model.encoder.language_model.";
constexpr std::array<std::string_view, 3> kOtherTowers = {"model.encoder.vision_tower.", "model.encoder.embed_vision.",
                                                          "model.encoder.audio"};

float scalar_of(const WeightScope& scope) {
  return static_cast<float>(element_as_double(scope.host_tensor("layer_scalar", {1}, {.mean = 1}), 0));
}

// The router's input is a norm without weight, times `scale` and 1 / sqrt(hidden): folded into one norm weight.
Tensor router_weight_of(const WeightScope& scope, int64_t hidden) {
  const TensorView scale = scope.scope("router").host_tensor("scale", {hidden}, {.mean = 1});
  Tensor weight(DType::kF32, {hidden});
  for (int64_t i = 0; i < hidden; ++i) {
    set_element(weight, i, element_as_double(scale, i) / std::sqrt(static_cast<double>(hidden)));
  }
  return weight;
}

Tensor numbers(DeviceRuntime& runtime, const std::vector<float>& values) {
  Tensor out(DType::kF32, {static_cast<int64_t>(values.size())});
  std::ranges::copy(values, out.data_as<float>());
  return copied_to(runtime, std::move(out));
}

// sqrt(hidden), rounded to the model's dtype as in training.
float embedding_scale(int64_t hidden, DType dtype) {
  const Tensor root(dtype, {1});
  set_element(root, 0, std::sqrt(static_cast<double>(hidden)));
  return static_cast<float>(element_as_double(root, 0));
}

// Broadcasts one number to all rows, as a factor of pointwise.
TensorView for_all_rows(const Tensor& numbers, int64_t i, int64_t rows) {
  return {numbers.data_as<float>() + i, DType::kF32, {rows, 1}, {0, 1}, numbers.view().device()};
}

bool same_kind(const RadixAttentionConfig& a, const RadixAttentionConfig& b) {
  return a.num_heads == b.num_heads && a.num_kv_heads == b.num_kv_heads && a.head_dim == b.head_dim &&
         a.sliding_window_size == b.sliding_window_size;
}

}  // namespace

ModelInfo diffusion_gemma_info(const ModelConfig& c, const DiffusionGemmaConfig& gemma, DType dtype) {
  ModelInfo info{.architecture = c.architecture,
                 .vocab_size = static_cast<int32_t>(c.vocab),
                 .context_length = c.context_length,
                 .num_layers = c.num_layers,
                 .eos_ids = c.eos_ids,
                 .dtype = dtype,
                 .diffusion = c.diffusion};
  for (const DiffusionGemmaConfig::Layer& layer : gemma.layers) {
    const GemmaAttentionConfig& a = layer.attention;
    const KVLayerShape shape{a.num_kv_heads, a.head_dim, a.head_dim};
    auto group = std::ranges::find(info.kv_groups, shape, &KVLayerGroup::shape);
    if (group == info.kv_groups.end()) group = info.kv_groups.insert(group, {shape, {}});
    group->layer_ids.push_back(a.layer_id);
    info.full_attn_layer_ids.push_back(a.layer_id);
    const RadixAttentionConfig layer_kind = a.attention();
    if (std::ranges::none_of(info.attention_kinds, [&](const auto& kind) { return same_kind(kind, layer_kind); }))
      info.attention_kinds.push_back(layer_kind);
  }
  info.experts.count = static_cast<int32_t>(gemma.moe.router.num_experts);
  info.experts.per_token = static_cast<int32_t>(gemma.moe.router.experts_per_token);
  return info;
}

DiffusionGemma::DiffusionGemma(const ModelConfig& c, const DiffusionGemmaConfig& gemma, Checkpoint checkpoint,
                               const LayerContext& context)
    : checkpoint_(std::move(checkpoint)),
      context_(context),
      info_(diffusion_gemma_info(c, gemma, context.dtype)),
      logit_cap_(numbers(*context.runtime, {gemma.logit_cap})),
      embedding_scale_(numbers(*context.runtime, {embedding_scale(c.hidden, context.dtype)})),
      ones_(numbers(*context.runtime, std::vector<float>(static_cast<size_t>(c.hidden), 1))),
      plain_norm_(ones_, c.eps) {
  require_vocab(*context.ops, c.vocab);
  const WeightScope decoder(checkpoint_, kDecoder), conditioning = decoder.scope("self_conditioning");
  embedding_ = decoder.scope("embed_tokens").tensor("weight", {c.vocab, c.hidden}, {.stddev = 0.05});
  HR_REQUIRE(embedding_.dtype() == DType::kF32 || embedding_.dtype() == DType::kBF16, ErrorCode::kUnsupported,
             c.architecture, ": embed_tokens.weight is ", name_of(embedding_.dtype()), "; built are float32, bfloat16");
  for (int32_t i = 0; i < c.num_layers; ++i) blocks_.push_back(make_block(i, c, gemma));
  norm_ = RMSNorm(decoder, "norm", c.hidden, c.eps, WeightForm::kPlain);
  conditioning_norm_ = RMSNorm(conditioning, "pre_norm", c.hidden, c.eps, WeightForm::kPlain);
  conditioning_ = GatedMLP(conditioning, c.hidden, c.intermediate, Activation::kGelu);
  check_tied_head({.body = decoder, .head = WeightScope(checkpoint_)}, {c.vocab, c.hidden});
  if (!checkpoint_.is_random()) {
    checkpoint_.require_all_used(kOtherTowers);
  }
  info_.weight_bytes = checkpoint_.stored_bytes();
  info_.num_parameters = checkpoint_.num_elements();
  info_.packed_formats = checkpoint_.packed_formats();
  const auto& router = gemma.moe.router;
  info_.experts.count = static_cast<int32_t>(router.num_experts);
  info_.experts.per_token = static_cast<int32_t>(router.experts_per_token);
  for (const Block& block : blocks_) info_.experts.bytes += block.moe.expert_bytes();
}

DiffusionGemma::Block DiffusionGemma::make_block(int32_t i, const ModelConfig& c, const DiffusionGemmaConfig& gemma) {
  const DiffusionGemmaConfig::Layer& layer = gemma.layers[static_cast<size_t>(i)];
  require_float(*context_.ops, i, "activations", context_.dtype);
  require_head_dim(*context_.ops, i, layer.attention.head_dim);
  require_experts(*context_.ops, i, gemma.moe.router.num_experts);
  const WeightScope scope(checkpoint_, str(kDecoder, "layers.", i, "."));
  const WeightScope encoder(checkpoint_, str(kEncoder, "layers.", i, "."));
  const auto norm = [&](const char* name) { return RMSNorm(scope, name, c.hidden, c.eps, WeightForm::kPlain); };
  auto rotary = std::make_unique<RotaryEmbedding>(layer.rotary, layer.attention.head_dim, scope.runtime());
  Tensor router_weight = copied_to(scope.runtime(), router_weight_of(scope, c.hidden));
  const RMSNorm router_norm(router_weight, c.eps);
  const RotaryEmbedding& turns = *rotary;  // its address is stable when the pointer moves
  return {.input_norm = norm("input_layernorm"),
          .post_attention_norm = norm("post_attention_layernorm"),
          .pre_mlp_norm = norm("pre_feedforward_layernorm"),
          .post_mlp_norm = norm("post_feedforward_layernorm_1"),
          .pre_moe_norm = norm("pre_feedforward_layernorm_2"),
          .post_moe_norm = norm("post_feedforward_layernorm_2"),
          .post_norm = norm("post_feedforward_layernorm"),
          .router_weight = std::move(router_weight),
          .router_norm = router_norm,
          .rotary = std::move(rotary),
          .attention = GemmaAttention(scope.scope("self_attn"), layer.attention, turns),
          .mlp = GatedMLP(scope.scope("mlp"), c.hidden, c.intermediate, Activation::kGelu),
          .moe = MoELayer(scope.scope("moe"), gemma.moe),
          .scales = numbers(scope.runtime(), {scalar_of(encoder), scalar_of(scope)})};
}

// Merges adjacent spans of one tower into one run.
std::vector<DiffusionGemma::Run> DiffusionGemma::runs_of(const ForwardBatch& batch) {
  std::vector<Run> runs;
  int64_t at = 0;
  for (const KeySpan& span : batch.attn.spans) {
    const Tower tower = span.kind == KeySpan::Kind::kFull ? Tower::kCanvas : Tower::kText;
    if (runs.empty() || runs.back().tower != tower) runs.push_back({at, at, tower});
    runs.back().end = at += span.q_len;
  }
  return runs;
}

void DiffusionGemma::scale_rows(const TensorView& x, const TensorView& factors) const {
  context_.ops->pointwise({.kind = PointwiseKind::kMul, .x = factors, .y = x, .out = x}, context_.op);
}

void DiffusionGemma::run_block(const Block& block, const TensorView& x, const ForwardBatch& batch,
                               const std::vector<Run>& runs) const {
  const auto add = [this](const TensorView& to, const TensorView& y) {
    context_.ops->pointwise({.kind = PointwiseKind::kAdd, .x = to, .y = y, .out = to}, context_.op);
  };
  const Tensor attended = block.attention.forward(context_, block.input_norm(context_, x), batch);
  block.post_attention_norm.forward(context_, attended, attended);
  add(x, attended);
  const Tensor dense = context_.make(x.shape()), experts = context_.make(x.shape());
  block.mlp.forward(context_, block.pre_mlp_norm(context_, x), dense);
  block.post_mlp_norm.forward(context_, dense, dense);
  const Tensor normed = block.pre_moe_norm(context_, x), routed_by = block.router_norm(context_, x);
  block.moe.forward(context_, {.x = normed, .routed_by = routed_by, .num_rows = batch.device_num_rows}, experts);
  block.post_moe_norm.forward(context_, experts, experts);
  add(dense, experts);
  block.post_norm.forward(context_, dense, dense);
  add(x, dense);
  for (const Run& run : runs) {
    scale_rows(x.slice(run.begin, run.end),
               for_all_rows(block.scales, run.tower == Tower::kText ? 0 : 1, run.end - run.begin));
  }
}

// Text: E sqrt(hidden). Canvas: that plus an MLP of the previous step's soft embeddings, then a norm.
Tensor DiffusionGemma::embed(const ForwardBatch& batch, const std::vector<Run>& runs) const {
  const int64_t tokens = batch.num_tokens(), hidden = embedding_.dim(1);
  Tensor x = context_.make({tokens, hidden});
  context_.ops->embedding({.ids = batch.input_ids, .table = embedding_, .out = x}, context_.op);
  scale_rows(x, for_all_rows(embedding_scale_, 0, tokens));
  if (std::ranges::none_of(runs, [](const Run& run) { return run.tower == Tower::kCanvas; })) return x;
  const auto root = static_cast<float>(std::sqrt(static_cast<double>(hidden)));
  const bool has_signal = batch.soft.self_conditioning.has_value();
  const Tensor soft = has_signal ? soft_embeddings(context_, batch, embedding_, root) : Tensor();
  for (const Run& run : runs) {
    if (run.tower == Tower::kText) continue;
    const TensorView rows = x.view().slice(run.begin, run.end);
    if (has_signal) {  // unmarked rows are zeros and stay zero
      const TensorView signal = soft.view().slice(run.begin, run.end);
      const Tensor drawn = context_.make(signal.shape());
      conditioning_norm_.forward(context_, signal, signal);
      conditioning_.forward(context_, signal, drawn);
      context_.ops->pointwise({.kind = PointwiseKind::kAdd, .x = rows, .y = drawn, .out = rows}, context_.op);
    }
    plain_norm_.forward(context_, rows, rows);
  }
  return x;
}

Tensor DiffusionGemma::logits(const TensorView& x, const ForwardBatch& batch) const {
  const auto count = static_cast<int64_t>(batch.logits_rows.size());
  const Tensor wanted = context_.make({count, x.dim(1)});
  Tensor out = context_.make(DType::kF32, {count, info_.vocab_size});
  if (count == 0) return out;
  const TensorView rows = context_.on_cpu()
                              ? TensorView(const_cast<int32_t*>(batch.logits_rows.data()), DType::kI32, {count})
                              : batch.device_logits_rows;
  context_.ops->embedding({.ids = rows, .table = x, .out = wanted}, context_.op);
  norm_.forward(context_, wanted, wanted);
  Linear(embedding_, {}).forward(context_, wanted, out);
  const TensorView caps = for_all_rows(logit_cap_, 0, count);
  context_.ops->pointwise({.kind = PointwiseKind::kSoftCap, .x = caps, .y = out, .out = out}, context_.op);
  return out;
}

Tensor DiffusionGemma::forward(const ForwardBatch& batch) const {
  const std::vector<Run> runs = runs_of(batch);
  const Tensor x = embed(batch, runs);
  for (const Block& block : blocks_) run_block(block, x, batch, runs);
  return logits(x, batch);
}

}  // namespace headrace
