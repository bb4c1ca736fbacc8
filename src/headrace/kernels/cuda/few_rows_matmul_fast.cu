// See few_rows_matmul.cuh: the order of fast mode.
#include "headrace/kernels/cuda/few_rows_matmul.cuh"

namespace headrace::cuda::few_rows_products {

template void launch_for<Order::kPieces>(const FusedLinearArgs& a, const Params& p, const Stream& stream);

}  // namespace headrace::cuda::few_rows_products
