// Which products the kernel of narrow_sm90.cuh takes, and what it is told.
#include "headrace/kernels/cuda/matmul/narrow_sm90.cuh"

#include "headrace/kernels/cuda/matmul/matmul.h"
#include "headrace/kernels/cuda/primitives/tensor_map.h"
#include "headrace/kernels/cuda/primitives/vector.cuh"

namespace headrace::cuda {
namespace narrow {

extern template void launch_of<__nv_bfloat16>(const Params& p, const NarrowPlan& plan, const Stream& stream);
extern template void launch_of<__half>(const Params& p, const NarrowPlan& plan, const Stream& stream);

namespace {

bool is_combined(const FusedLinearArgs& a) { return a.combine == FusedLinearArgs::Combine::kSiluMul; }

NarrowPlan plan_of(const FusedLinearArgs& a, Determinism determinism, const Stream& stream) {
  return plan_narrow({.rows = a.x.dim(0),
                      .out = a.products[0].weight.dim(0),
                      .in = a.x.dim(1),
                      .combined = is_combined(a),
                      .strict = determinism == Determinism::kStrict},
                     stream.num_sms);
}

// Rows that copies of 16 bytes reach.
bool in_boxes(const TensorView& x, DType type) { return x.dtype() == type && in_pieces(x); }

// A lane writes two neighbouring 16-bit results at once, and reads such residuals; float32 one by one.
bool can_write(const FusedLinearArgs& a) {
  const auto in_words = [&](const TensorView& x) {
    return x.dtype() == a.x.dtype() && reinterpret_cast<uintptr_t>(x.data()) % 4 == 0 && x.stride(0) % 2 == 0 &&
           x.dim(1) % 2 == 0 && x.stride(1) == 1;
  };
  const TensorView& y = a.products[0].y;
  return ((y.dtype() == DType::kF32 && !is_combined(a)) || in_words(y)) && (!a.residual || in_words(a.residual));
}

Params params_of(const FusedLinearArgs& a, const NarrowPlan& plan) {
  constexpr const char* kOp = "linear";
  const FusedLinearArgs::Product& product = a.products[0];
  const int64_t tile_rows = NarrowPlan::kBoxRows * (is_combined(a) ? 1 : plan.boxes), out = product.weight.dim(0);
  const auto pieces = static_cast<int>((a.x.dim(1) + NarrowPlan::kPieceLen - 1) / NarrowPlan::kPieceLen);
  const auto chunks = static_cast<int>((a.x.dim(1) + kPartLen - 1) / kPartLen);
  Params p{.x = map_of_rows(a.x, static_cast<cuuint32_t>(plan.width), kOp),
           .weights = {map_of_rows(product.weight, NarrowPlan::kBoxRows, kOp), {}},
           .result = {.y = Rows(product.y),
                      .residual = Rows(a.residual),
                      .bias = product.bias.data(),
                      .bias_type = product.bias.dtype()},
           .rows = static_cast<int>(a.x.dim(0)),
           .out = static_cast<int>(out),
           .tiles = static_cast<int>((out + tile_rows - 1) / tile_rows),
           .stages = plan.stages,
           .blocks = plan.blocks,
           .join_bytes = plan.join_bytes(),
           .pieces = pieces / plan.blocks,
           .pieces_more = pieces % plan.blocks,
           .part_chunks = chunks / kSegments,
           .parts_more = chunks % kSegments,
           .parts = plan.parts(),
           .share = plan.share(),
           .whole_shares = plan.units() - (plan.units() - 1) / plan.blocks * plan.blocks,
           .combined = is_combined(a)};
  if (is_combined(a)) p.weights[1] = map_of_rows(a.products[1].weight, NarrowPlan::kBoxRows, kOp);
  return p;
}

}  // namespace
}  // namespace narrow

bool narrow_supports(const FusedLinearArgs& a, Determinism determinism, const Stream& stream) {
  const DType type = a.x.dtype();
  const bool combined = narrow::is_combined(a);
  if (stream.arch != 90 || type == DType::kF32 || a.norm_weight) return false;
  if (a.num_products != (combined ? 2 : 1) || !narrow::in_boxes(a.x, type)) return false;
  for (int i = 0; i < a.num_products; ++i) {
    if (!narrow::in_boxes(a.products[static_cast<size_t>(i)].weight, type)) return false;
  }
  if (combined && (a.residual || a.products[0].bias || a.products[1].bias)) return false;
  return narrow::can_write(a) && narrow::plan_of(a, determinism, stream).width != 0;
}

void narrow_matmul(const FusedLinearArgs& a, Determinism determinism, const Stream& stream) {
  const NarrowPlan plan = narrow::plan_of(a, determinism, stream);
  const narrow::Params p = narrow::params_of(a, plan);
  a.x.dtype() == DType::kBF16 ? narrow::launch_of<__nv_bfloat16>(p, plan, stream)
                              : narrow::launch_of<__half>(p, plan, stream);
}

}  // namespace headrace::cuda
