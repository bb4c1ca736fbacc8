// Host side of the small-M GEMM: its parameters and launch.
#include "headrace/ops/cuda/gemm/sm90/small_m_gemm.cuh"

#include "headrace/ops/cuda/arch/tensor_map.h"
#include "headrace/ops/cuda/gemm/gemm.h"

namespace headrace::cuda {
namespace small_m {

using Order = SmallMGemmPlan::Order;
using Launch = void(const Params& p, const SmallMGemmPlan& plan, const Stream& stream);
extern template Launch launch_of<__nv_bfloat16, Order::kRanges>;
extern template Launch launch_of<__nv_bfloat16, Order::kParts>;
extern template Launch launch_of<__half, Order::kRanges>;
extern template Launch launch_of<__half, Order::kParts>;

namespace {

template <class T>
void launch_in_order(const Params& p, const SmallMGemmPlan& plan, const Stream& stream) {
  plan.order == Order::kParts ? launch_of<T, Order::kParts>(p, plan, stream)
                              : launch_of<T, Order::kRanges>(p, plan, stream);
}

bool is_combined(const FusedLinearArgs& a) { return a.combine == FusedLinearArgs::Combine::kSiluMul; }

Params params_of(const FusedLinearArgs& a, const SmallMGemmPlan& plan) {
  constexpr const char* kOp = "linear";
  const FusedLinearArgs::Product& product = a.products[0];
  const int64_t out = product.weight.dim(0), columns = plan.weight_columns();
  const auto chunks = static_cast<int>((a.x.dim(1) + SmallMGemmPlan::kChunk - 1) / SmallMGemmPlan::kChunk);
  const int steps = (chunks + SmallMGemmPlan::kStageChunks - 1) / SmallMGemmPlan::kStageChunks;
  const bool whole_chunks = a.x.dim(1) % SmallMGemmPlan::kChunk == 0;
  const auto map = [&](const TensorView& of, int64_t rows, cuuint32_t box_chunks) {
    const auto box_rows = static_cast<cuuint32_t>(rows);
    return whole_chunks ? map_of_chunks(of, box_rows, box_chunks, kOp) : map_of_rows(of, box_rows, kOp);
  };
  const cuuint32_t weight_chunks = is_combined(a) ? 1 : SmallMGemmPlan::kStageChunks;
  Params p{.x = map(a.x, plan.box_rows, SmallMGemmPlan::kStageChunks),
           .weights = {map(product.weight, columns, weight_chunks), {}},
           .result = {.y = Rows(product.y),
                      .residual = Rows(a.residual),
                      .bias = product.bias.data(),
                      .bias_type = product.bias.dtype()},
           .rows = static_cast<int>(a.x.dim(0)),
           .out = static_cast<int>(out),
           .tiles = static_cast<int>((out + columns - 1) / columns),
           .chunks = chunks,
           .whole_chunks = whole_chunks,
           .stages = plan.stages,
           .stage_bytes = plan.stage_bytes(),
           .x_bytes = plan.box_rows * kRowBytes,
           .blocks = plan.blocks,
           .join_bytes = plan.join_bytes(),
           .steps = steps / plan.blocks,
           .steps_more = steps % plan.blocks,
           .parts = plan.parts(),
           .summands = plan.summands(),
           .warps = plan.box_rows / 16,
           .share = plan.share(),
           .whole_shares = plan.units() - (plan.units() - 1) / plan.blocks * plan.blocks};
  if (is_combined(a)) p.weights[1] = map(a.products[1].weight, columns, weight_chunks);
  return p;
}

}  // namespace
}  // namespace small_m

void small_m_gemm(const FusedLinearArgs& a, const SmallMGemmPlan& plan, const Stream& stream) {
  const small_m::Params p = small_m::params_of(a, plan);
  a.x.dtype() == DType::kBF16 ? small_m::launch_in_order<__nv_bfloat16>(p, plan, stream)
                              : small_m::launch_in_order<__half>(p, plan, stream);
}

}  // namespace headrace::cuda
