// Element types of the CPU kernels' Params structs. FP8, and codes of int8 with scales beside them, occur in KV pools
// only.
#pragma once

namespace headrace::cpu {

enum class FloatType : int { kF32, kBF16, kF16, kE4M3, kI8 };

}  // namespace headrace::cpu
