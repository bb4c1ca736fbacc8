// Float types of the CPU kernels' Params structs. FP8 occurs in KV pools only.
#pragma once

namespace headrace::cpu {

enum class FloatType : int { kF32, kBF16, kF16, kE4M3 };

}  // namespace headrace::cpu
