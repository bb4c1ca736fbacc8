#include "headrace/ops/fused_linear.h"

#include "headrace/ops/checks.h"
#include "headrace/ops/linear.h"

namespace headrace {
namespace {

void check_combination(const FusedLinearArgs& a) {
  const FusedLinearArgs::Product &first = a.products[0], &second = a.products[1];
  HR_REQUIRE(a.num_products == 2 && !a.residual && !second.y, ErrorCode::kInvalidArgument,
             "fused_linear: silu_mul has ", a.num_products, " products", a.residual ? " and a residual" : "",
             ", expected two without a residual and one result");
  check_weight("fused_linear: second weight", second.weight, first.weight.shape());
  if (!first.weight.packed()) check_dtype("fused_linear: second weight", second.weight, first.weight.dtype());
}

}  // namespace

void check(const FusedLinearArgs& a) {
  HR_REQUIRE(a.num_products >= 1 && a.num_products <= FusedLinearArgs::kMaxProducts, ErrorCode::kInvalidArgument,
             "fused_linear: ", a.num_products, " products, expected 1 to ", FusedLinearArgs::kMaxProducts);
  const bool combined = a.combine == FusedLinearArgs::Combine::kSiluMul;
  if (combined) check_combination(a);
  for (int i = 0; i < a.num_products; ++i) {
    const FusedLinearArgs::Product& p = a.products[static_cast<size_t>(i)];
    check(LinearArgs{.x = a.x, .weight = p.weight, .bias = p.bias, .y = combined ? a.products[0].y : p.y});
  }
  if (a.norm_weight) {
    check_shape("fused_linear: norm weight", a.norm_weight, {a.x.dim(1)});
    check_float("fused_linear: norm weight", a.norm_weight);
  }
  if (!a.residual) return;
  HR_REQUIRE(a.num_products == 1, ErrorCode::kInvalidArgument, "fused_linear: a residual with ", a.num_products,
             " products, expected one");
  check_shape("fused_linear: residual", a.residual, a.products[0].y.shape());
  check_dtype("fused_linear: residual", a.residual, a.products[0].y.dtype());
  check_rows_contiguous("fused_linear: residual", a.residual);
}

}  // namespace headrace
