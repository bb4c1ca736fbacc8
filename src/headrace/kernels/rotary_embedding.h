// Rotary position embedding, half-split pairing.
#pragma once
#include "headrace/base/tensor.h"
#include "headrace/kernels/op_context.h"

namespace headrace {

// In place, for the pairs (x_i, x_{i + R/2}), i < R/2, of each head's first R elements at angle positions[t] *
// inv_freq[i]: (x_i cos - x_{i+R/2} sin, x_{i+R/2} cos + x_i sin) * magnitude. Other elements stay. Angles, sines
// and products are float32 or wider.
// Source: Su et al. 2021, eq. 34, in the half-split order of Llama and Qwen checkpoints.
struct RotaryEmbeddingArgs {
  TensorView x;          // [tokens, heads, dim], a float dtype; rotated in place; rows may be strided
  TensorView positions;  // int32 [tokens]
  TensorView inv_freq;   // float32 [R / 2]
  float magnitude = 1;   // YaRN's attention factor
};

// Error kInvalidArgument when shapes or dtypes disagree or R exceeds dim.
void check(const RotaryEmbeddingArgs& args);

}  // namespace headrace
