// Helpers of the params_of functions.
#pragma once
#include "headrace/core/tensor.h"
#include "headrace/ops/cpu/float_type.h"
#include "headrace/ops/cpu/token_scales.h"

namespace headrace::cpu {

// Returns kF32 for a null view. Throws Error kUnsupported for a dtype that CPU kernels do not read.
inline FloatType float_type(const TensorView& tensor) {
  switch (tensor.dtype()) {
    case DType::kF32: return FloatType::kF32;
    case DType::kBF16: return FloatType::kBF16;
    case DType::kF16: return FloatType::kF16;
    default: break;
  }
  throw Error(ErrorCode::kUnsupported, str("cpu kernels: dtype ", name_of(tensor.dtype()),
                                           " is not built; built are float32, bfloat16 and float16"));
}

// As float_type for keys or values of a pool, which may also be FP8 or int8.
inline FloatType pool_type(const TensorView& tensor) {
  if (tensor.dtype() == DType::kI8) return FloatType::kI8;
  return tensor.dtype() == DType::kE4M3 ? FloatType::kE4M3 : float_type(tensor);
}

// Null for a null view.
inline TokenScales token_scales_of(const TensorView& x) {
  if (!x) return {};
  return {.data = static_cast<float*>(x.data()),
          .page_stride = x.stride(0),
          .head_stride = x.stride(1),
          .slot_stride = x.stride(2)};
}

}  // namespace headrace::cpu
