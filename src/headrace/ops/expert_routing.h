// Mixture-of-experts routing: top-k experts of each token and their weights.
#pragma once
#include "headrace/core/tensor.h"
#include "headrace/ops/op_context.h"

namespace headrace {

inline constexpr int32_t kNoExpert = -1;  // expert id of padding rows

// Selects, per row of logits, the `k` experts with the largest scores, best first. Ties go to the lower expert or
// group. A group's score is the sum of its two best experts' scores. Source: DeepSeek-V3 report, section 2.1.2.
struct ExpertRoutingArgs {
  enum class Scores : uint8_t {
    kSoftmax,  // softmax over all experts
    kSigmoid,  // sigmoid of each expert's logit
  };
  enum class Renormalise : uint8_t { kNo, kYes };

  TensorView logits = {};  // float32 [tokens, experts]
  TensorView bias = {};    // [experts], a float dtype, or null: added to the scores for selection, not to the weights
  TensorView expert_scale = {};  // [experts], a float dtype, or null: multiplies the weights too
  Scores scores = Scores::kSoftmax;
  Renormalise renormalise = Renormalise::kYes;   // kYes: divides a token's weights by their sum
  int64_t num_groups = 1, groups_per_token = 1;  // k experts come from the best groups only
  float weight_scale = 1;                        // multiplies every weight, after renormalising
  // int32 [1], or null: rows from this count on are padding; their experts are kNoExpert and their weights 0.
  TensorView num_rows = {};
  // Shared expert, appended after the k chosen ones as expert `num_experts`. Its weight is 1 (kFull) or the sigmoid of
  // shared_gate (kGated).
  enum class Shared : uint8_t { kNone, kFull, kGated } shared = Shared::kNone;
  TensorView shared_gate = {};  // float32 [tokens, 1], for kGated
  TensorView experts = {};      // int32 [tokens, k]; with a shared expert [tokens, k + 1]
  TensorView weights = {};      // float32, shape of experts

  int64_t k() const { return experts.dim(1) - (shared == Shared::kNone ? 0 : 1); }
};

// Throws Error kInvalidArgument if shapes or dtypes disagree, or if k or the groups do not fit the number of experts.
void check(const ExpertRoutingArgs& args);

}  // namespace headrace
