// Activations of a gated MLP's gate branch.
#pragma once
#include <cstdint>

namespace headrace {

enum class Activation : uint8_t { kSilu, kGelu };  // kGelu: tanh approximation (Gemma)

}  // namespace headrace
