// Which experts each token goes to, and how much each of them counts.
#pragma once
#include "headrace/core/tensor.h"
#include "headrace/ops/op_context.h"

namespace headrace {

inline constexpr int32_t kNoExpert = -1;  // what rows of padding choose

// Of each row of logits: the `k` experts with the largest scores, the best first; ties go to the lower expert, or
// group. Source: DeepSeek-V3 report, section 2.1.2; the group's score is the sum of its two best.
struct ExpertRoutingArgs {
  enum class Scores : uint8_t {
    kSoftmax,  // over all experts
    kSigmoid,  // of each expert alone
  };
  enum class Renormalise : uint8_t { kNo, kYes };

  TensorView logits = {};  // float32 [tokens, experts]
  TensorView bias = {};    // [experts], a float dtype, or null: added to the scores that select, never to the weights
  TensorView expert_scale = {};  // [experts], a float dtype, or null: multiplies the weights too
  Scores scores = Scores::kSoftmax;
  Renormalise renormalise = Renormalise::kYes;   // whether a token's weights are divided by their sum
  int64_t num_groups = 1, groups_per_token = 1;  // only experts of the best groups
  float weight_scale = 1;                        // of every weight, after renormalising
  TensorView num_rows = {};                      // int32 [1], or null: rows behind so many are padding, whose experts
                                                 // are kNoExpert and whose weights are 0
  // A last choice of every token, behind its k: expert `num_experts`, whose weight is 1 or, gated, the sigmoid of
  // shared_gate.
  enum class Shared : uint8_t { kNone, kFull, kGated } shared = Shared::kNone;
  TensorView shared_gate = {};  // float32 [tokens, 1], where kGated
  TensorView experts = {};      // int32 [tokens, k], with a shared one [tokens, k + 1]
  TensorView weights = {};      // float32, likewise

  int64_t k() const { return experts.dim(1) - (shared == Shared::kNone ? 0 : 1); }
};

// Error kInvalidArgument when shapes or dtypes disagree, or when k or the groups do not fit the experts.
void check(const ExpertRoutingArgs& args);

}  // namespace headrace
