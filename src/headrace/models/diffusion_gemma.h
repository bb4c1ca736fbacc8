// DiffusionGemma: Gemma 4's MoE decoder used twice with the same weights: as a causal encoder of finished text, and as
// a decoder of one canvas whose tokens see the text and each other.
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

// Fields that ModelConfig lacks.
struct DiffusionGemmaConfig {
  struct Layer {
    GemmaAttentionConfig attention;
    RotaryConfig rotary;
  };
  std::vector<Layer> layers;
  MoEConfig moe;
  float logit_cap = 30;
};

// See causal_lm_info.
ModelInfo diffusion_gemma_info(const ModelConfig& config, const DiffusionGemmaConfig& gemma, DType dtype);
// As diffusion_gemma_info, from config.json before weights are read.
ModelInfo stated_diffusion_gemma_info(const JsonValue& root, const ModelConfig& config, DType dtype);

// Tokens of spans of kind kFull are canvas, all others text. Not thread-safe.
class DiffusionGemma final : public Model {
 public:
  // Errors as CausalLM.
  DiffusionGemma(const ModelConfig& config, const DiffusionGemmaConfig& gemma, Checkpoint checkpoint,
                 const LayerContext& context);

  const ModelInfo& info() const override { return info_; }
  Tensor forward(const ForwardBatch& batch) const override;

 private:
  enum class Tower : uint8_t { kText, kCanvas };
  struct Run {  // adjacent tokens [begin, end) of a batch
    int64_t begin, end;
    Tower tower;
  };
  // x += N(attention(N(x))); x = s (x + N(N(mlp(N(x))) + N(moe(N(x), routed by x)))); each N has its own weight, s
  // depends on the tower
  struct Block {
    RMSNorm input_norm, post_attention_norm, pre_mlp_norm, post_mlp_norm, pre_moe_norm, post_moe_norm, post_norm;
    Tensor router_weight;  // float32 [hidden]: weight of the router's norm
    RMSNorm router_norm;   // refers to router_weight
    std::unique_ptr<RotaryEmbedding> rotary;
    GemmaAttention attention;  // refers to *rotary
    GatedMLP mlp;
    MoELayer moe;
    Tensor scales;  // float32 [2], by tower
  };
  Block make_block(int32_t layer, const ModelConfig& config, const DiffusionGemmaConfig& gemma);
  void run_block(const Block& block, const TensorView& x, const ForwardBatch& batch,
                 const std::vector<Run>& runs) const;
  static std::vector<Run> runs_of(const ForwardBatch& batch);
  Tensor embed(const ForwardBatch& batch, const std::vector<Run>& runs) const;
  Tensor logits(const TensorView& x, const ForwardBatch& batch) const;
  void scale_rows(const TensorView& x, const TensorView& factors) const;  // factors float32 [rows, 1]

  Checkpoint checkpoint_;  // owns the memory behind every weight
  LayerContext context_;
  ModelInfo info_;
  Tensor logit_cap_, embedding_scale_;  // float32 [1] each
  TensorView embedding_;
  std::vector<Block> blocks_;
  RMSNorm norm_, conditioning_norm_;
  GatedMLP conditioning_;
  Tensor ones_;         // float32 [hidden]
  RMSNorm plain_norm_;  // refers to ones_
};

ModelConfig diffusion_gemma_config(const JsonValue& root);
// Reads the canvas schedule of generation_config.json. Error kModelFile for values out of range, kUnsupported for a
// sampler that is not built.
void read_canvas_schedule(const JsonValue& generation, ModelConfig& config);
std::unique_ptr<Model> make_diffusion_gemma(const JsonValue& root, const ModelConfig& config, Checkpoint checkpoint,
                                            const LayerContext& context);

}  // namespace headrace
