#include "headrace/kernels/checks.h"

namespace headrace {

void check_shape(std::string_view name, const TensorView& tensor, const Shape& expected) {
  HR_REQUIRE(tensor.shape() == expected, ErrorCode::kInvalidArgument, name, ": shape is ", tensor.shape(),
             ", expected ", expected);
  check_rows_contiguous(name, tensor);
}

void check_dtype(std::string_view name, const TensorView& tensor, DType expected) {
  HR_REQUIRE(tensor.dtype() == expected, ErrorCode::kInvalidArgument, name, ": dtype is ", name_of(tensor.dtype()),
             ", expected ", name_of(expected));
}

void check_float(std::string_view name, const TensorView& tensor) {
  const DType dtype = tensor.dtype();
  HR_REQUIRE(dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16, ErrorCode::kInvalidArgument, name,
             ": dtype is ", name_of(dtype), ", expected float32, bfloat16 or float16");
}

void check_rank(std::string_view name, const TensorView& tensor, int expected) {
  HR_REQUIRE(tensor.rank() == expected, ErrorCode::kInvalidArgument, name, ": shape ", tensor.shape(), " has ",
             tensor.rank(), " dimensions, expected ", expected);
}

void check_rows_contiguous(std::string_view name, const TensorView& tensor) {
  const int last = tensor.rank() - 1;
  HR_REQUIRE(last < 0 || tensor.dim(last) <= 1 || tensor.stride(last) == 1, ErrorCode::kInvalidArgument, name,
             ": the last dimension's stride is ", tensor.stride(last), ", expected 1");
}

}  // namespace headrace
