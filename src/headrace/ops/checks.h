// Argument checks shared by the ops' check(args) functions.
#pragma once
#include <string_view>

#include "headrace/cache/kv_pool.h"
#include "headrace/core/weight_view.h"

namespace headrace {

// Each throws Error kInvalidArgument: "<name>: ... is <found>, expected <expected>".
void check_shape(std::string_view name, const TensorView& tensor, const Shape& expected);
void check_dense(std::string_view name, const TensorView& tensor, DType dtype, const Shape& expected);
void check_dtype(std::string_view name, const TensorView& tensor, DType expected);
void check_float(std::string_view name, const TensorView& tensor);  // float32, bfloat16 or float16
void check_kv_layer(std::string_view name, const KVLayerView& kv);  // dtypes and scales of one layer of a pool
void refuse_int8_pool(std::string_view op, const KVLayerView& kv);  // Error kUnsupported for a pool of int8
void check_rank(std::string_view name, const TensorView& tensor, int expected);
void check_weight(std::string_view name, const WeightView& weight, const Shape& expected);  // check_float, or packed
void check_rows_contiguous(std::string_view name, const TensorView& tensor);  // the last dimension's stride is 1

}  // namespace headrace
