// What a gated MLP applies to its gate.
#pragma once
#include <cstdint>

namespace headrace {

enum class Activation : uint8_t { kSilu, kGelu };  // gelu by tanh: Gemma

}  // namespace headrace
