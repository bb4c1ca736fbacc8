// Host side of the sm_90 batch-invariant GEMM: its parameters and launch.
#include "headrace/ops/cuda/gemm/sm90/batch_invariant_gemm.cuh"

#include <algorithm>

#include "headrace/ops/cuda/arch/tensor_map.h"

namespace headrace::cuda {
namespace batch_invariant {
namespace {

constexpr const char* kOp = "linear";

bool is_combined(const FusedLinearArgs& a) { return a.combine == FusedLinearArgs::Combine::kSiluMul; }

Params params_of(const FusedLinearArgs& a) {
  const FusedLinearArgs::Product& product = a.products[0];
  const int columns = is_combined(a) ? kColumns / 2 : kColumns;
  Params p{.x = map_of_rows(a.x, kRows, kOp),
           .weights = {map_of_rows(product.weight, kBoxRows, kOp), {}},
           .y = Rows(product.y),
           .residual = Rows(a.residual),
           .bias = product.bias.data(),
           .rows = static_cast<int>(a.x.dim(0)),
           .out = static_cast<int>(product.weight.dim(0)),
           .in = static_cast<int>(a.x.dim(1)),
           .weight_columns = columns};
  if (is_combined(a)) p.weights[1] = map_of_rows(a.products[1].weight, kBoxRows, kOp);
  p.row_tiles = (p.rows + kRows - 1) / kRows;
  p.column_tiles = (p.out + columns - 1) / columns;
  return p;
}

template <class T>
void launch(const Params& p, const Stream& stream) {
  const int blocks = std::min(stream.num_sms, p.row_tiles * p.column_tiles);
  launch_pdl(stream, multiply<T>, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), kSharedBytes, p,
             "batch_invariant_gemm_sm90");
}

}  // namespace
}  // namespace batch_invariant

void batch_invariant_gemm_sm90(const FusedLinearArgs& a, const Stream& stream) {
  const batch_invariant::Params p = batch_invariant::params_of(a);
  a.x.dtype() == DType::kBF16 ? batch_invariant::launch<__nv_bfloat16>(p, stream)
                              : batch_invariant::launch<__half>(p, stream);
}

}  // namespace headrace::cuda
