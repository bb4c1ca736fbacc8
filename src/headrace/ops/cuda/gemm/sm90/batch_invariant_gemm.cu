// Host side of the sm_90 batch-invariant GEMM: which calls it takes, and its launch.
#include "headrace/ops/cuda/gemm/sm90/batch_invariant_gemm.cuh"

#include <algorithm>

#include "headrace/ops/cuda/arch/tensor_map.h"
#include "headrace/ops/cuda/arch/vec8.cuh"

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

// Returns true if TMA can read the rows: 16-byte vectors of the dtype `type`.
bool in_boxes(const TensorView& x, DType type) { return x.dtype() == type && is_vec8(x); }

bool can_write(const FusedLinearArgs& a, const FusedLinearArgs::Product& product) {
  const TensorView& y = product.y;
  const DType type = a.x.dtype();
  if (product.bias && (product.bias.dtype() != type || reinterpret_cast<uintptr_t>(product.bias.data()) % 4 != 0)) {
    return false;
  }
  if (y.dtype() != DType::kF32) return in_boxes(y, type) && (!a.residual || in_boxes(a.residual, type));
  return !a.residual && reinterpret_cast<uintptr_t>(y.data()) % 8 == 0 && y.stride(0) % 2 == 0 && y.dim(1) % 2 == 0;
}

}  // namespace
}  // namespace batch_invariant

bool batch_invariant_gemm_sm90_supports(const FusedLinearArgs& a, const Stream& stream) {
  const DType type = a.x.dtype();
  const bool combined = batch_invariant::is_combined(a);
  if (stream.arch != 90 || type == DType::kF32 || a.norm_weight) return false;
  if (a.num_products != (combined ? 2 : 1) || !batch_invariant::in_boxes(a.x, type)) return false;
  for (int i = 0; i < a.num_products; ++i) {
    if (!batch_invariant::in_boxes(a.products[static_cast<size_t>(i)].weight, type)) return false;
  }
  if (combined && (a.residual || a.products[0].bias || a.products[1].bias)) return false;
  return batch_invariant::can_write(a, a.products[0]);
}

void batch_invariant_gemm_sm90(const FusedLinearArgs& a, const Stream& stream) {
  const batch_invariant::Params p = batch_invariant::params_of(a);
  a.x.dtype() == DType::kBF16 ? batch_invariant::launch<__nv_bfloat16>(p, stream)
                              : batch_invariant::launch<__half>(p, stream);
}

}  // namespace headrace::cuda
