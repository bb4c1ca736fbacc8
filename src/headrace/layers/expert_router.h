// Which experts a token goes to, and how much each of them counts.
#pragma once
#include <vector>

#include "headrace/layers/linear.h"

namespace headrace {

struct ExpertRouterConfig {
  int64_t hidden = 0, num_experts = 0, experts_per_token = 0;
  using Scores = ExpertRoutingArgs::Scores;
  Scores scores = Scores::kSoftmax;  // Qwen3-MoE, LLaDA-MoE; sigmoids: LLaDA2
  using Renormalise = ExpertRoutingArgs::Renormalise;
  Renormalise norm_topk_prob = Renormalise::kYes;
  // "gate.expert_bias" (or "gate.e_score_correction_bias") is added to the scores that select, never to the weights.
  enum class SelectionBias : uint8_t { kNo, kYes } selection_bias = SelectionBias::kNo;
  int64_t num_groups = 1, groups_per_token = 1;  // only experts of the best groups, by the sum of a group's best two
  float weight_scale = 1;                        // of every weight, after renormalising
  // "gate.per_expert_scale" [experts] multiplies the weights too (Gemma).
  enum class ExpertScale : uint8_t { kNo, kYes } expert_scale = ExpertScale::kNo;
};

// Scores and selection are float32, whatever the activations are; ties go to the lower expert, or group. Refers to its
// weight. Callable from any thread.
class ExpertRouter {
 public:
  struct Choice {
    int32_t expert = 0;
    float weight = 0;
  };

  ExpertRouter() = default;
  // "gate.weight" [experts, hidden] and the bias [experts], if it has one.
  ExpertRouter(const WeightScope& scope, const ExpertRouterConfig& config);

  // [tokens * experts_per_token]: a token's choices behind each other, the best first. On a CPU.
  std::vector<Choice> operator()(const LayerContext& context, const TensorView& x) const;
  // The same on a device: experts int32 and weights float32, both [tokens, experts_per_token], with a shared expert one
  // more.
  struct Choices {
    Tensor experts, weights;
  };
  struct OnDevice {
    TensorView x, num_rows;  // num_rows as ExpertRoutingArgs has it
    ExpertRoutingArgs::Shared shared = ExpertRoutingArgs::Shared::kNone;
    const Linear* shared_gate = nullptr;  // of x, where the shared expert is gated
  };
  Choices on_device(const LayerContext& context, const OnDevice& of) const;

 private:
  void choose(const float* logits, std::vector<Choice>& choices) const;
  void keep_best_groups(std::vector<float>& rank) const;

  ExpertRouterConfig config_;
  Linear gate_;
  std::vector<float> bias_, scale_;        // [experts], or empty
  TensorView stored_bias_, stored_scale_;  // the same where weights lie, or null; not owned
};

}  // namespace headrace
