#include "headrace/models/diffusion_gemma.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "headrace/base/parallel.h"

namespace headrace {
namespace {

constexpr const char* kDecoder = "model.decoder.";
constexpr const char* kEncoder = "model.encoder.language_model.";

ModelInfo info_of(const ModelConfig& c, const DiffusionGemmaConfig& gemma, const LayerContext& context) {
  ModelInfo info{.architecture = c.architecture,
                 .vocab_size = static_cast<int32_t>(c.vocab),
                 .context_length = c.context_length,
                 .num_layers = c.num_layers,
                 .eos_ids = c.eos_ids,
                 .dtype = context.dtype,
                 .diffusion = c.diffusion};
  for (const DiffusionGemmaConfig::Layer& layer : gemma.layers) {
    const GemmaAttentionConfig& a = layer.attention;
    const KVLayerShape shape{a.num_kv_heads, a.head_dim, a.head_dim};
    auto group = std::ranges::find(info.kv_groups, shape, &KVLayerGroup::shape);
    if (group == info.kv_groups.end()) group = info.kv_groups.insert(group, {shape, {}});
    group->layer_ids.push_back(a.layer_id);
    info.full_attn_layer_ids.push_back(a.layer_id);
  }
  return info;
}

float scalar_of(const WeightScope& scope) {
  return static_cast<float>(element_as_double(scope.host_tensor("layer_scalar", {1}, {.mean = 1}), 0));
}

// A norm without a weight, then `scale` and 1 / sqrt(hidden): what the router reads, as the weight of one norm.
Tensor router_weight_of(const WeightScope& scope, int64_t hidden) {
  const TensorView scale = scope.scope("router").host_tensor("scale", {hidden}, {.mean = 1});
  Tensor weight(DType::kF32, {hidden});
  for (int64_t i = 0; i < hidden; ++i) {
    set_element(weight, i, element_as_double(scale, i) / std::sqrt(static_cast<double>(hidden)));
  }
  return weight;
}

Tensor filled(int64_t rows, int64_t columns, float value) {
  Tensor out(DType::kF32, {rows, columns});
  std::fill_n(out.data_as<float>(), rows * columns, value);
  return out;
}

std::vector<bool> canvas_rows(const ForwardBatch& batch) {
  std::vector<bool> canvas;
  for (const KeySpan& span : batch.attn.spans) {
    canvas.insert(canvas.end(), static_cast<size_t>(span.q_len), span.kind == KeySpan::Kind::kFull);
  }
  return canvas;
}

// sum += weight * row
void add_row(const TensorView& row, float weight, std::vector<float>& sum) {
  if (row.dtype() == DType::kBF16) {
    const auto* from = static_cast<const BF16*>(row.data());
    for (size_t d = 0; d < sum.size(); ++d) sum[d] += weight * static_cast<float>(from[d]);
    return;
  }
  const auto* from = static_cast<const float*>(row.data());
  for (size_t d = 0; d < sum.size(); ++d) sum[d] += weight * from[d];
}

}  // namespace

DiffusionGemma::DiffusionGemma(const ModelConfig& c, const DiffusionGemmaConfig& gemma, Checkpoint checkpoint,
                               const LayerContext& context)
    : checkpoint_(std::move(checkpoint)),
      context_(context),
      info_(info_of(c, gemma, context)),
      logit_cap_(gemma.logit_cap),
      ones_(filled(1, c.hidden, 1)),
      plain_norm_(ones_.view().reshape({c.hidden}), c.eps) {
  HR_REQUIRE(context.on_cpu(), ErrorCode::kUnsupported, c.architecture, " runs on the CPU alone");
  const WeightScope decoder(checkpoint_, kDecoder), conditioning = decoder.scope("self_conditioning");
  embedding_ = decoder.scope("embed_tokens").tensor("weight", {c.vocab, c.hidden}, {.stddev = 0.05});
  HR_REQUIRE(embedding_.dtype() == DType::kF32 || embedding_.dtype() == DType::kBF16, ErrorCode::kUnsupported,
             c.architecture, ": embed_tokens.weight is ", name_of(embedding_.dtype()), "; built are float32, bfloat16");
  for (int32_t i = 0; i < c.num_layers; ++i) blocks_.push_back(make_block(i, c, gemma));
  norm_ = RMSNorm(decoder, "norm", c.hidden, c.eps, WeightForm::kPlain);
  conditioning_norm_ = RMSNorm(conditioning, "pre_norm", c.hidden, c.eps, WeightForm::kPlain);
  conditioning_ = GatedMLP(conditioning, c.hidden, c.intermediate, Activation::kGelu);
  const WeightScope head(checkpoint_, "lm_head.");
  if (head.has("weight")) head.tensor("weight", {c.vocab, c.hidden});  // tied: read, so that it counts as known
  if (!checkpoint_.is_random()) {
    checkpoint_.require_all_used({"model.encoder.vision_tower.", "model.encoder.embed_vision.", "model.encoder.audio"});
  }
  info_.weight_bytes = checkpoint_.stored_bytes();
}

DiffusionGemma::Block DiffusionGemma::make_block(int32_t i, const ModelConfig& c, const DiffusionGemmaConfig& gemma) {
  const DiffusionGemmaConfig::Layer& layer = gemma.layers[static_cast<size_t>(i)];
  const WeightScope scope(checkpoint_, str(kDecoder, "layers.", i, "."));
  const WeightScope encoder(checkpoint_, str(kEncoder, "layers.", i, "."));
  const auto norm = [&](const char* name) { return RMSNorm(scope, name, c.hidden, c.eps, WeightForm::kPlain); };
  auto rotary = std::make_unique<RotaryEmbedding>(layer.rotary, layer.attention.head_dim);
  Tensor router_weight = router_weight_of(scope, c.hidden);
  const RMSNorm router_norm(router_weight, c.eps);
  const RotaryEmbedding& turns = *rotary;  // where it stays when the pointer moves
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
          .text_scale = scalar_of(encoder),
          .canvas_scale = scalar_of(scope)};
}

void DiffusionGemma::scale_rows(const TensorView& x, const Tensor& factors) const {
  context_.ops->pointwise({.kind = PointwiseKind::kMul, .x = factors, .y = x, .out = x}, context_.op);
}

void DiffusionGemma::run_block(const Block& block, const TensorView& x, const ForwardBatch& batch,
                               const std::vector<bool>& canvas) const {
  const auto add = [this](const TensorView& to, const TensorView& y) {
    context_.ops->pointwise({.kind = PointwiseKind::kAdd, .x = to, .y = y, .out = to}, context_.op);
  };
  const Tensor attended = block.attention.forward(context_, block.input_norm(context_, x), batch);
  block.post_attention_norm.forward(context_, attended, attended);
  add(x, attended);
  const Tensor dense = context_.make(x.shape()), experts = context_.make(x.shape());
  block.mlp.forward(context_, block.pre_mlp_norm(context_, x), dense);
  block.post_mlp_norm.forward(context_, dense, dense);
  block.moe.forward(context_, block.pre_moe_norm(context_, x), block.router_norm(context_, x), experts);
  block.post_moe_norm.forward(context_, experts, experts);
  add(dense, experts);
  block.post_norm.forward(context_, dense, dense);
  add(x, dense);
  const Tensor factors(DType::kF32, {x.dim(0), 1});
  for (int64_t t = 0; t < x.dim(0); ++t) {
    set_element(factors, t, canvas[static_cast<size_t>(t)] ? block.canvas_scale : block.text_scale);
  }
  scale_rows(x, factors);
}

// softmax(logits) E sqrt(hidden), on the rows that carry a signal; zeros on the others. [rows, hidden]
Tensor DiffusionGemma::soft_embeddings(const SelfConditioning& previous, const std::vector<int64_t>& rows) const {
  const int64_t hidden = embedding_.dim(1), vocab = info_.vocab_size;
  const TensorView& logits = previous.logits;
  HR_REQUIRE(logits.dtype() == DType::kF32 && logits.rank() == 2 && logits.dim(1) == vocab, ErrorCode::kInvalidArgument,
             "self-conditioning: logits are ", name_of(logits.dtype()), " ", logits.shape(),
             ", expected float32 [rows, ", vocab, "]");
  Tensor soft = Tensor::zeros(context_.dtype, {static_cast<int64_t>(rows.size()), hidden});
  std::vector<std::pair<int64_t, int64_t>> marked;  // row of soft, row of logits
  for (size_t r = 0; r < rows.size(); ++r) {
    if (element_as_double(previous.mask, rows[r]) != 0) {
      marked.emplace_back(static_cast<int64_t>(r), static_cast<int64_t>(marked.size()));
    }
  }
  HR_REQUIRE(static_cast<int64_t>(marked.size()) == logits.dim(0), ErrorCode::kInvalidArgument,
             "self-conditioning: ", logits.dim(0), " rows of logits for ", marked.size(), " marked canvas rows");
  const auto root = static_cast<float>(std::sqrt(static_cast<double>(hidden)));
  parallel_for(context_.op.threads, static_cast<int64_t>(marked.size()), [&](int64_t i) {
    const auto [row, from] = marked[static_cast<size_t>(i)];
    const auto* l = static_cast<const float*>(logits.select(from).data());
    const float largest = *std::max_element(l, l + vocab);
    double total = 0;
    for (int64_t v = 0; v < vocab; ++v) total += std::exp(static_cast<double>(l[v] - largest));
    std::vector<float> sum(static_cast<size_t>(hidden), 0);
    for (int64_t v = 0; v < vocab; ++v) {
      const auto p = static_cast<float>(std::exp(static_cast<double>(l[v] - largest)) / total);
      if (p > 0) add_row(embedding_.select(v), p, sum);
    }
    for (int64_t d = 0; d < hidden; ++d) set_element(soft, row * hidden + d, sum[static_cast<size_t>(d)] * root);
  });
  return soft;
}

// Text: E sqrt(hidden). Canvas: that plus what the step before gave, through an MLP, then a norm.
Tensor DiffusionGemma::embed(const ForwardBatch& batch, const std::vector<bool>& canvas) const {
  const int64_t tokens = batch.num_tokens(), hidden = embedding_.dim(1);
  Tensor x = context_.make({tokens, hidden});
  context_.ops->embedding({.ids = batch.input_ids, .table = embedding_, .out = x}, context_.op);
  const Tensor root(context_.dtype, {1});  // rounded to the model's dtype, as in training
  set_element(root, 0, std::sqrt(static_cast<double>(hidden)));
  scale_rows(x, filled(tokens, 1, static_cast<float>(element_as_double(root, 0))));
  std::vector<int64_t> rows;
  for (int64_t t = 0; t < tokens; ++t) {
    if (canvas[static_cast<size_t>(t)]) rows.push_back(t);
  }
  if (rows.empty()) return x;
  const auto count = static_cast<int64_t>(rows.size());
  const Tensor drawn = context_.make({count, hidden});
  if (batch.attn.self_conditioning) {
    const Tensor soft = soft_embeddings(*batch.attn.self_conditioning, rows);
    conditioning_norm_.forward(context_, soft, soft);
    conditioning_.forward(context_, soft, drawn);
  } else {
    std::memset(drawn.data(), 0, static_cast<size_t>(drawn.bytes()));
  }
  for (int64_t r = 0; r < count; ++r) {
    const TensorView row = x.view().slice(rows[static_cast<size_t>(r)], rows[static_cast<size_t>(r)] + 1);
    const TensorView signal = drawn.view().slice(r, r + 1);
    context_.ops->pointwise({.kind = PointwiseKind::kAdd, .x = row, .y = signal, .out = row}, context_.op);
    plain_norm_.forward(context_, row, row);
  }
  return x;
}

Tensor DiffusionGemma::logits(const TensorView& x, const ForwardBatch& batch) const {
  const auto count = static_cast<int64_t>(batch.logits_rows.size());
  const Tensor wanted = context_.make({count, x.dim(1)});
  Tensor out(DType::kF32, {count, info_.vocab_size});
  if (count == 0) return out;
  const TensorView rows(const_cast<int32_t*>(batch.logits_rows.data()), DType::kI32, {count});
  context_.ops->embedding({.ids = rows, .table = x, .out = wanted}, context_.op);
  norm_.forward(context_, wanted, wanted);
  Linear(embedding_, {}).forward(context_, wanted, out);
  const Tensor caps = filled(count, 1, logit_cap_);
  context_.ops->pointwise({.kind = PointwiseKind::kSoftCap, .x = caps, .y = out, .out = out}, context_.op);
  return out;
}

Tensor DiffusionGemma::forward(const ForwardBatch& batch) const {
  const std::vector<bool> canvas = canvas_rows(batch);
  const Tensor x = embed(batch, canvas);
  for (const Block& block : blocks_) run_block(block, x, batch, canvas);
  return logits(x, batch);
}

}  // namespace headrace
