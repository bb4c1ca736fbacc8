#include "headrace/ops/checks.h"

#include <cmath>

#include "headrace/ops/op_set.h"

namespace headrace {

void refuse_op(std::string_view op) {
  throw Error(ErrorCode::kUnsupported, str("op '", op, "' is not built in this kernel set"));
}

void check_shape(std::string_view name, const TensorView& tensor, const Shape& expected) {
  HR_REQUIRE(tensor.shape() == expected, ErrorCode::kInvalidArgument, name, ": shape is ", tensor.shape(),
             ", expected ", expected);
  check_rows_contiguous(name, tensor);
}

void check_dense(std::string_view name, const TensorView& tensor, DType dtype, const Shape& expected) {
  check_shape(name, tensor, expected);
  check_dtype(name, tensor, dtype);
  HR_REQUIRE(tensor.is_contiguous(), ErrorCode::kInvalidArgument, name, " is expected to be dense");
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

void check_weight(std::string_view name, const WeightView& weight, const Shape& expected) {
  HR_REQUIRE(weight.shape() == expected, ErrorCode::kInvalidArgument, name, ": shape is ", weight.shape(),
             ", expected ", expected);
  if (!weight.packed()) check_float(name, weight);
}

void check_kv_layer(std::string_view name, const KVLayerView& kv) {
  const bool fp8 = kv.k.dtype() == DType::kE4M3, int8 = kv.k.dtype() == DType::kI8;
  if (!fp8 && !int8) check_float(str(name, ": pool k"), kv.k);
  check_dtype(str(name, ": pool v"), kv.v, kv.k.dtype());
  for (const float scale : {kv.k_scale, kv.v_scale}) {
    HR_REQUIRE(fp8 ? std::isfinite(scale) && scale > 0 : scale == 1, ErrorCode::kInvalidArgument, name,
               ": the pool of ", name_of(kv.k.dtype()), " has scales ", kv.k_scale, " and ", kv.v_scale, ", expected ",
               fp8 ? "positive numbers" : "1");
  }
  const Shape tokens{kv.num_pages(), kv.num_kv_heads(), kv.page_size()};
  for (const TensorView& scales : {kv.k_token_scales, kv.v_token_scales}) {
    HR_REQUIRE(int8 == static_cast<bool>(scales), ErrorCode::kInvalidArgument, name, ": the pool of ",
               name_of(kv.k.dtype()), " is given ", scales ? "" : "no ", "token scales, expected ",
               int8 ? "some" : "none");
    if (!int8) continue;
    HR_REQUIRE(scales.shape() == tokens, ErrorCode::kInvalidArgument, name, ": token scales: shape is ", scales.shape(),
               ", expected ", tokens);
    check_dtype(str(name, ": token scales"), scales, DType::kF32);
  }
}

void refuse_int8_pool(std::string_view op, const KVLayerView& kv) {
  HR_REQUIRE(!kv || kv.k.dtype() != DType::kI8, ErrorCode::kUnsupported, op,
             ": keys and values in int8 run on a CPU alone");
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
