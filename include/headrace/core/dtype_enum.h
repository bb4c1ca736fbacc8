// The dtype enum alone, for kernel launch headers: dtype.h includes strings, which every CUDA source would parse four
// times.
#pragma once
#include <cstdint>

namespace headrace {

enum class DType : uint8_t { kF32, kBF16, kF16, kF64, kI32, kI64, kU8, kE4M3, kI8 };

}  // namespace headrace
