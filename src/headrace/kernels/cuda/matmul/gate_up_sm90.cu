// Which products are combined at once in fast mode, by which kernel, and what that of gate_up_sm90.cuh is told.
#include "headrace/kernels/cuda/matmul/gate_up_sm90.cuh"

#include "headrace/kernels/cuda/matmul/matmul.h"
#include "headrace/kernels/cuda/primitives/tensor_map.h"

namespace headrace::cuda {
namespace gate_up {

extern template void launch_of<__nv_bfloat16>(int width, const Params& p, const Stream& stream);
extern template void launch_of<__half>(int width, const Params& p, const Stream& stream);

namespace {

GateUpPlan plan_of(const FusedLinearArgs& a, const Stream& stream) {
  return plan_gate_up(a.x.dim(0), a.products[0].weight.dim(0), a.x.dim(1), stream.num_sms);
}

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
}  // namespace gate_up

bool gate_up_sm90_supports(const FusedLinearArgs& a, const Stream& stream) {
  return a.combine == FusedLinearArgs::Combine::kSiluMul && a.products[0].y.dtype() == a.x.dtype() &&
         ordered_sm90_supports(a, stream) && gate_up::plan_of(a, stream).kernel != GateUpPlan::Kernel::kParts;
}

void gate_up_sm90(const FusedLinearArgs& a, const Stream& stream) {
  const GateUpPlan plan = gate_up::plan_of(a, stream);
  if (plan.kernel == GateUpPlan::Kernel::kOrdered) return ordered_matmul_sm90(a, stream);
  const gate_up::Params p = gate_up::params_of(a, plan.width);
  a.x.dtype() == DType::kBF16 ? gate_up::launch_of<__nv_bfloat16>(plan.width, p, stream)
                              : gate_up::launch_of<__half>(plan.width, p, stream);
}

}  // namespace headrace::cuda
