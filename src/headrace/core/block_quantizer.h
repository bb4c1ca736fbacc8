// Floats to quantised blocks.
#pragma once
#include <optional>
#include <span>

#include "headrace/core/block_format.h"

namespace headrace {

// The largest magnitude that quantize() takes, float16's: every scale of a block then is a finite float16.
inline constexpr float kMostQuantizable = 65504;

// Returns a value that quantize() refuses: one that is no finite number, or beyond kMostQuantizable.
std::optional<float> unquantizable(std::span<const float> values);

// Encodes `values`, whole blocks of them, into `blocks`, which has their bytes. dequantize() inverts it up to rounding.
// Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0 follow ggml's rules bit by bit: scales from the extremes of a block. Q4_K, Q5_K and
// Q6_K choose scales by least squares over candidate grids; source: headrace. Bits do not depend on the machine.
// Error kInvalidArgument: parts of blocks, or an unquantizable() value.
void quantize(BlockFormat format, std::span<const float> values, std::span<unsigned char> blocks);

}  // namespace headrace
