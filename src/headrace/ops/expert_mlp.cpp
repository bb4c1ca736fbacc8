#include "headrace/ops/expert_mlp.h"

#include "headrace/ops/checks.h"

namespace headrace {

void check(const ExpertMLPArgs& a) {
  check_rank("expert_mlp: x", a.x, 2);
  check_float("expert_mlp: x", a.x);
  check_rows_contiguous("expert_mlp: x", a.x);
  check_rank("expert_mlp: experts", a.experts, 2);
  check_dtype("expert_mlp: experts", a.experts, DType::kI32);
  const int64_t tokens = a.x.dim(0), k = a.experts.dim(1);
  check_shape("expert_mlp: experts", a.experts, {tokens, k});
  check_shape("expert_mlp: weights", a.weights, {tokens, k});
  check_dtype("expert_mlp: weights", a.weights, DType::kF32);
  check_rank("expert_mlp: addresses", a.addresses, 2);
  check_shape("expert_mlp: addresses", a.addresses, {a.addresses.dim(0), 3});
  check_dtype("expert_mlp: addresses", a.addresses, DType::kI64);
  check_shape("expert_mlp: y", a.y, a.x.shape());
  check_dtype("expert_mlp: y", a.y, a.y.dtype() == a.x.dtype() ? a.x.dtype() : DType::kF32);
  if (a.residual) {
    check_shape("expert_mlp: residual", a.residual, a.y.shape());
    check_dtype("expert_mlp: residual", a.residual, a.y.dtype());
  }
  HR_REQUIRE(
      a.y.is_contiguous() && a.residual.is_contiguous() && a.experts.is_contiguous() && a.weights.is_contiguous(),
      ErrorCode::kInvalidArgument, "expert_mlp: experts, weights, residual and y are expected to be dense");
  HR_REQUIRE(k >= 1 && a.intermediate >= 1, ErrorCode::kInvalidArgument, "expert_mlp: ", k, " experts per token of ",
             a.intermediate, " channels, expected at least one");
}

}  // namespace headrace
