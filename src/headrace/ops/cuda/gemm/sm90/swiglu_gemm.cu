// Host side of the SwiGLU GEMM: its parameters and launch.
#include "headrace/ops/cuda/gemm/sm90/swiglu_gemm.cuh"

#include "headrace/ops/cuda/arch/tensor_map.h"
#include "headrace/ops/cuda/gemm/gemm.h"

namespace headrace::cuda {
namespace swiglu {

extern template void launch_of<__nv_bfloat16>(int width, const Params& p, const Stream& stream);
extern template void launch_of<__half>(int width, const Params& p, const Stream& stream);

namespace {

Params params_of(const FusedLinearArgs& a, int width) {
  constexpr const char* kOp = "gate and up";
  const FusedLinearArgs::Product &gate = a.products[0], &up = a.products[1];
  Params p{.x = map_of_rows(a.x, static_cast<cuuint32_t>(width), kOp),
           .gate = map_of_rows(gate.weight, kColumns, kOp),
           .up = map_of_rows(up.weight, kColumns, kOp),
           .y = Rows(gate.y),
           .rows = static_cast<int>(a.x.dim(0)),
           .out = static_cast<int>(gate.weight.dim(0)),
           .in = static_cast<int>(a.x.dim(1))};
  p.row_tiles = (p.rows + width - 1) / width;
  p.column_tiles = (p.out + kColumns - 1) / kColumns;
  return p;
}

}  // namespace
}  // namespace swiglu

void swiglu_gemm(const FusedLinearArgs& a, const SwigluGemmPlan& plan, const Stream& stream) {
  if (plan.kernel == SwigluGemmPlan::Kernel::kOrdered) return batch_invariant_gemm_sm90(a, stream);
  const swiglu::Params p = swiglu::params_of(a, plan.width);
  a.x.dtype() == DType::kBF16 ? swiglu::launch_of<__nv_bfloat16>(plan.width, p, stream)
                              : swiglu::launch_of<__half>(plan.width, p, stream);
}

}  // namespace headrace::cuda
