// The decoder shared by all causal families: pre-norm layers whose parts ModelConfig chooses.
#pragma once
#include <optional>
#include <vector>

#include "headrace/models/model.h"
#include "headrace/models/model_config.h"
#include "headrace/weights/checkpoint.h"

namespace headrace {

// Returns what the engine needs to build pools, and the stated facts; nothing about weights.
ModelInfo causal_lm_info(const ModelConfig& config, DType dtype);

class CausalLM final : public Model {
 public:
  // Loads every tensor. Error kModelFile for a missing, unknown or misshapen one.
  CausalLM(const ModelConfig& config, Checkpoint checkpoint, const LayerContext& context);

  const ModelInfo& info() const override { return info_; }
  Tensor forward(const ForwardBatch& batch) const override;

 private:
  // x += mixer(norm(x)); x += mlp(norm(x))
  struct Block {
    RMSNorm input_norm, post_norm;
    std::optional<SelfAttention> attention;  // one of these two
    std::optional<GatedDeltaNet> gdn;
    std::optional<GatedMLP> mlp;  // one of these two
    std::optional<MoELayer> moe;
  };
  void add_block(const WeightScope& scope, const ModelConfig& config, int32_t layer);
  // These get the context of the forward pass, whose GEMMs may be pending.
  void run_mixer(const LayerContext& context, const Block& block, const TensorView& x, const ForwardBatch& batch) const;
  void run_mlp(const LayerContext& context, const Block& block, const TensorView& x, const ForwardBatch& batch) const;
  // Returns the rows that have logits.
  Tensor run_last_block(const LayerContext& context, const TensorView& x, const ForwardBatch& batch) const;
  Tensor rows_of_logits(const LayerContext& context, const TensorView& x, const ForwardBatch& batch) const;
  Tensor logits(const LayerContext& context, const TensorView& rows) const;

  Checkpoint checkpoint_;  // owns the memory behind every weight
  LayerContext context_;
  ModelInfo info_;
  RotaryEmbedding rotary_;
  WeightView embedding_;
  std::vector<Block> blocks_;
  RMSNorm norm_;
  Linear head_;
};

}  // namespace headrace
