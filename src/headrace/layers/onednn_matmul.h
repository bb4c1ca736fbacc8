// GEMM of many rows by oneDNN. The only file that names oneDNN.
#pragma once
#include "headrace/ops/linear.h"

namespace headrace {

// Returns true if oneDNN is built in and supports these dtypes: x and weight both float32 or, on a CPU with AVX-512,
// both bfloat16; y and bias of that dtype or float32.
bool onednn_supports(const LinearArgs& args);

// As the op linear. Reads weights as stored: packing would keep a second copy of the model. Sums in float32, in an
// order that depends on M but not on the threads. Error kInternal if oneDNN fails.
void onednn_matmul(const LinearArgs& args, const OpContext& context);

}  // namespace headrace
