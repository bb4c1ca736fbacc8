// The float types that CPU kernels read and write, as plain integers of a Params struct. FP8 is of KV pools alone.
#pragma once

namespace headrace::cpu {

enum class FloatType : int { kF32, kBF16, kF16, kE4M3 };

}  // namespace headrace::cpu
