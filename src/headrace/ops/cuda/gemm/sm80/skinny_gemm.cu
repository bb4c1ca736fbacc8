// Host side of the skinny GEMM and GEMV: which calls they take, and their parameters.
#include "headrace/core/error.h"
#include "headrace/ops/cuda/gemm/sm80/skinny_gemm.cuh"

namespace headrace::cuda {
namespace {

bool aligned(const TensorView& x) {
  return reinterpret_cast<uintptr_t>(x.data()) % 16 == 0 && x.stride(0) % 8 == 0 && x.stride(1) == 1;
}

}  // namespace

bool has_few_rows(const FusedLinearArgs& a) {
  const int64_t largest_in = a.norm_weight ? 5120 : 5632;  // for M = 16; larger ones are not measured
  const DType type = a.x.dtype();
  if (type == DType::kF32 || a.x.dim(0) == 0 || a.x.dim(0) > kFewRows || a.x.dim(1) % 8 != 0 || !aligned(a.x))
    return false;
  if (a.x.dim(1) > largest_in * kFewRows / a.x.dim(0)) return false;
  for (int i = 0; i < a.num_products; ++i) {
    const FusedLinearArgs::Product& product = a.products[static_cast<size_t>(i)];
    if (product.weight.dtype() != type || !aligned(product.weight)) return false;
    if (a.combine == FusedLinearArgs::Combine::kSiluMul && product.bias) return false;
  }
  return true;
}

bool skinny_gemm_supports(const FusedLinearArgs& a, Determinism determinism, const Stream& stream) {
  const SkinnyGemmShape shape{.rows = a.x.dim(0),
                              .in = a.x.dim(1),
                              .normed = a.norm_weight.data() != nullptr,
                              .combined = a.combine == FusedLinearArgs::Combine::kSiluMul,
                              .strict = determinism == Determinism::kStrict};
  return has_few_rows(a) && shape.fits(static_cast<int64_t>(stream.shared_bytes_of_block));
}

bool gemv_supports(const FusedLinearArgs& a, const Stream& stream) {
  using namespace skinny;
  if (a.x.dim(0) > kMostGemvRows || !has_few_rows(a)) return false;
  const bool combined = a.combine == FusedLinearArgs::Combine::kSiluMul;
  int64_t tiles = 0;
  for (int i = 0; i < (combined ? 1 : a.num_products); ++i) {
    tiles += (a.products[static_cast<size_t>(i)].weight.dim(0) + kTileRows - 1) / kTileRows;
  }
  return std::ranges::any_of(kPassesAtOnce, [&](int passes) {
    const int tiles_of_block = tiles_at_once(combined, passes);
    return a.x.dim(1) <= int64_t{passes} * kPassLen &&
           (tiles + tiles_of_block - 1) / tiles_of_block <=
               int64_t{stream.num_sms} * blocks_at_once(combined, passes, tiles_of_block);
  });
}

void skinny_gemm(const FusedLinearArgs& a, Determinism determinism, const Stream& stream) {
  using namespace skinny;
  HR_REQUIRE(determinism == Determinism::kFast || !a.norm_weight || gemv_supports(a, stream), ErrorCode::kInternal,
             "skinny_gemm: a norm of rows that are not in registers has sums of its own; expected rms_norm in "
             "batch-invariant mode");
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
  determinism == Determinism::kStrict ? launch_for<Order::kNeighbours>(a, p, stream)
                                      : launch_for<Order::kPieces>(a, p, stream);
}

}  // namespace headrace::cuda
