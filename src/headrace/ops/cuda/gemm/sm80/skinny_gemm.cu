// Host side of the skinny GEMM and GEMV: their parameters and launch.
#include "headrace/core/error.h"
#include "headrace/ops/cuda/gemm/sm80/skinny_gemm.cuh"

namespace headrace::cuda {
namespace {

using namespace skinny;  // NOLINT: the kernels' own names

Params params_of(const FusedLinearArgs& a) {
  Params p{.x = Rows(a.x),
           .norm_weight = a.norm_weight.data(),
           .norm_type = a.norm_weight.dtype(),
           .eps = a.eps,
           .weight_offset = a.norm_form == WeightForm::kPlusOne ? 1.0f : 0.0f,
           .norm_in_pieces = a.norm_weight && a.norm_weight.dtype() == a.x.dtype() &&
                             reinterpret_cast<uintptr_t>(a.norm_weight.data()) % 16 == 0,
           .weights = {},
           .num_weights = a.num_products,
           .rows = static_cast<int>(a.x.dim(0)),
           .in = static_cast<int>(a.x.dim(1)),
           .tiles = 0,
           .passes = static_cast<int>((a.x.dim(1) + kPassLen - 1) / kPassLen)};
  const bool combined = a.combine == FusedLinearArgs::Combine::kSiluMul;
  for (int i = 0; i < a.num_products; ++i) {
    const FusedLinearArgs::Product& product = a.products[static_cast<size_t>(i)];
    const auto out = static_cast<int>(product.weight.dim(0));
    if (!combined || i == 0) p.tiles += (out + kTileRows - 1) / kTileRows;
    p.weights[i] = {.data = static_cast<const char*>(product.weight.data()),
                    .row_bytes = product.weight.stride(0) * 2,
                    .out = out,
                    .end_tile = p.tiles,
                    .result = {.y = Rows(product.y),
                               .residual = Rows(a.residual),
                               .bias = product.bias.data(),
                               .bias_type = product.bias.dtype()}};
  }
  return p;
}

}  // namespace

void skinny_gemm(const FusedLinearArgs& a, Determinism determinism, const Stream& stream) {
  HR_REQUIRE(determinism == Determinism::kFast || !a.norm_weight, ErrorCode::kInternal,
             "skinny_gemm: its norm has sums of its own; expected rms_norm in batch-invariant mode");
  const Params p = params_of(a);
  determinism == Determinism::kStrict ? launch_for<Order::kNeighbours>(a, p, stream)
                                      : launch_for<Order::kPieces>(a, p, stream);
}

void gemv(const FusedLinearArgs& a, Determinism determinism, const Stream& stream) {
  const Params p = params_of(a);
  determinism == Determinism::kStrict ? launch_gemv_for<Order::kNeighbours>(a, p, stream)
                                      : launch_gemv_for<Order::kPieces>(a, p, stream);
}

}  // namespace headrace::cuda
