// DiffusionGemma: Gemma 4's MoE decoder twice over the same weights, as a causal encoder of finished text and as a
// decoder of one canvas whose tokens see the text and each other.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "headrace/layers/gated_mlp.h"
#include "headrace/layers/gemma_attention.h"
#include "headrace/layers/moe_layer.h"
#include "headrace/models/model.h"
#include "headrace/models/model_config.h"
#include "headrace/weights/checkpoint.h"

namespace headrace {

// What ModelConfig has no words for.
struct DiffusionGemmaConfig {
  struct Layer {
    GemmaAttentionConfig attention;
    RotaryConfig rotary;
  };
  std::vector<Layer> layers;
  MoEConfig moe;
  float logit_cap = 30;
};

// Rows of spans of kind kFull are canvas, all others text. Runs on the CPU alone. Not thread-safe.
class DiffusionGemma final : public Model {
 public:
  // As CausalLM. Error kUnsupported on a device.
  DiffusionGemma(const ModelConfig& config, const DiffusionGemmaConfig& gemma, Checkpoint checkpoint,
                 const LayerContext& context);

  const ModelInfo& info() const override { return info_; }
  Tensor forward(const ForwardBatch& batch) const override;

 private:
  // x += N(attention(N(x))); x = s (x + N(N(mlp(N(x))) + N(moe(N(x), routed by x)))), each N its own, s by tower
  struct Block {
    RMSNorm input_norm, post_attention_norm, pre_mlp_norm, post_mlp_norm, pre_moe_norm, post_moe_norm, post_norm;
    Tensor router_weight;  // float32 [hidden]: of the norm of what the router reads
    RMSNorm router_norm;   // refers to router_weight
    std::unique_ptr<RotaryEmbedding> rotary;
    GemmaAttention attention;  // refers to *rotary
    GatedMLP mlp;
    MoELayer moe;
    float text_scale, canvas_scale;
  };
  Block make_block(int32_t layer, const ModelConfig& config, const DiffusionGemmaConfig& gemma);
  void run_block(const Block& block, const TensorView& x, const ForwardBatch& batch,
                 const std::vector<bool>& canvas) const;
  Tensor embed(const ForwardBatch& batch, const std::vector<bool>& canvas) const;
  Tensor soft_embeddings(const SelfConditioning& previous, const std::vector<int64_t>& rows) const;
  Tensor logits(const TensorView& x, const ForwardBatch& batch) const;
  void scale_rows(const TensorView& x, const Tensor& factors) const;  // factors float32 [tokens, 1]

  Checkpoint checkpoint_;  // owns the memory behind every weight
  LayerContext context_;
  ModelInfo info_;
  float logit_cap_;
  TensorView embedding_;
  std::vector<Block> blocks_;
  RMSNorm norm_, conditioning_norm_;
  GatedMLP conditioning_;
  Tensor ones_;         // float32 [hidden]
  RMSNorm plain_norm_;  // refers to ones_
};

ModelConfig diffusion_gemma_config(const JsonValue& root);
// generation_config.json's say on the canvas. Error kModelFile for values out of range, kUnsupported for a sampler that
// is not built.
void read_canvas_schedule(const JsonValue& generation, ModelConfig& config);
std::unique_ptr<Model> make_diffusion_gemma(const JsonValue& root, const ModelConfig& config, Checkpoint checkpoint,
                                            const LayerContext& context);

}  // namespace headrace
