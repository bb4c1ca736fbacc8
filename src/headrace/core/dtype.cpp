#include "headrace/core/dtype.h"

namespace headrace {

std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "float32";
    case DType::kBF16: return "bfloat16";
    case DType::kF16: return "float16";
    case DType::kF64: return "float64";
    case DType::kI32: return "int32";
    case DType::kI64: return "int64";
    case DType::kU8: return "uint8";
    case DType::kE4M3: return "float8_e4m3fn";
    case DType::kI8: return "int8";
  }
  return "unknown";
}

int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32: return 4;
    case DType::kBF16:
    case DType::kF16: return 2;
    case DType::kF64:
    case DType::kI64: return 8;
    case DType::kU8:
    case DType::kE4M3:
    case DType::kI8: return 1;
  }
  return 0;
}

}  // namespace headrace
