// The float types that CPU kernels read and write, as plain integers of a Params struct.
#pragma once

namespace headrace::cpu {

enum class FloatType : int { kF32, kBF16, kF16 };

}  // namespace headrace::cpu
