#include "headrace/ops/expert_routing.h"

#include "headrace/ops/checks.h"

namespace headrace {

void check(const ExpertRoutingArgs& a) {
  check_rank("expert_routing: logits", a.logits, 2);
  check_dtype("expert_routing: logits", a.logits, DType::kF32);
  check_rows_contiguous("expert_routing: logits", a.logits);
  check_rank("expert_routing: experts", a.experts, 2);
  check_dtype("expert_routing: experts", a.experts, DType::kI32);
  const int64_t tokens = a.logits.dim(0), experts = a.logits.dim(1), k = a.k();
  check_shape("expert_routing: experts", a.experts, {tokens, a.experts.dim(1)});
  check_shape("expert_routing: weights", a.weights, a.experts.shape());
  check_dtype("expert_routing: weights", a.weights, DType::kF32);
  HR_REQUIRE(k >= 1 && k <= experts, ErrorCode::kInvalidArgument, "expert_routing: ", k,
             " experts per token, expected 1 to ", experts);
  HR_REQUIRE(a.num_groups >= 1 && experts % a.num_groups == 0 && a.groups_per_token >= 1, ErrorCode::kInvalidArgument,
             "expert_routing: ", a.groups_per_token, " of ", a.num_groups, " groups of ", experts, " experts");
  if (a.shared == ExpertRoutingArgs::Shared::kGated) {
    check_shape("expert_routing: shared_gate", a.shared_gate, {tokens, 1});
    check_dtype("expert_routing: shared_gate", a.shared_gate, DType::kF32);
  }
  if (a.num_rows) {
    check_shape("expert_routing: num_rows", a.num_rows, {1});
    check_dtype("expert_routing: num_rows", a.num_rows, DType::kI32);
  }
  for (const TensorView& x : {a.bias, a.expert_scale}) {
    if (!x) continue;
    check_shape("expert_routing: bias or scale", x, {experts});
    check_float("expert_routing: bias or scale", x);
  }
}

}  // namespace headrace
