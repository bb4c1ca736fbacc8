// Router of a mixture of experts: chooses experts and their weights.
#pragma once
#include <vector>

#include "headrace/layers/linear.h"

namespace headrace {

struct ExpertRouterConfig {
  int64_t hidden = 0, num_experts = 0, experts_per_token = 0;
  using Scores = ExpertRoutingArgs::Scores;
  Scores scores = Scores::kSoftmax;  // Qwen3-MoE, LLaDA-MoE; LLaDA2 uses sigmoids
  using Renormalise = ExpertRoutingArgs::Renormalise;
  Renormalise norm_topk_prob = Renormalise::kYes;
  // "gate.expert_bias" (or "gate.e_score_correction_bias") is added to scores for the selection, not to the weights.
  enum class SelectionBias : uint8_t { kNo, kYes } selection_bias = SelectionBias::kNo;
  int64_t num_groups = 1, groups_per_token = 1;  // selects only from the best groups, by the sum of a group's best two
  float weight_scale = 1;                        // multiplies every weight, after renormalising
  // "gate.per_expert_scale" [experts] also multiplies the weights (Gemma).
  enum class ExpertScale : uint8_t { kNo, kYes } expert_scale = ExpertScale::kNo;
};

// Scores and selection are float32; ties go to the lower expert or group. Does not own its weight. Callable from any
// thread.
class ExpertRouter {
 public:
  struct Choice {
    int32_t expert = 0;
    float weight = 0;
  };

  ExpertRouter() = default;
  // Uses "gate.weight" [experts, hidden] and, if configured, the bias [experts].
  ExpertRouter(const WeightScope& scope, const ExpertRouterConfig& config);

  // Routes x [tokens, hidden] on a CPU. Returns [tokens * experts_per_token]: each token's choices, best first.
  std::vector<Choice> operator()(const LayerContext& context, const TensorView& x) const;
  // Routes on a device: experts int32 and weights float32, both [tokens, experts_per_token], plus one column for a
  // shared expert.
  struct Choices {
    Tensor experts, weights;
  };
  struct OnDevice {
    TensorView x, num_rows;  // [tokens, hidden]; num_rows: see ExpertRoutingArgs
    ExpertRoutingArgs::Shared shared = ExpertRoutingArgs::Shared::kNone;
    const Linear* shared_gate = nullptr;  // gate of the shared expert, or null
  };
  Choices on_device(const LayerContext& context, const OnDevice& of) const;

 private:
  void choose(const float* logits, std::vector<Choice>& choices) const;
  void keep_best_groups(std::vector<float>& rank) const;

  ExpertRouterConfig config_;
  Linear gate_;
  std::vector<float> bias_, scale_;        // [experts], or empty
  TensorView stored_bias_, stored_scale_;  // the same on the device of the weights, or null; not owned
};

}  // namespace headrace
