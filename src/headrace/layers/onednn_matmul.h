// Dense matrix products of many rows through oneDNN. The only file that names it.
#pragma once
#include "headrace/ops/linear.h"

namespace headrace {

// Whether oneDNN is built in and runs these dtypes: x and weight both float32 or, on a processor with AVX-512, both
// bfloat16, y and bias of theirs or float32.
bool onednn_supports(const LinearArgs& args);

// As linear. Weights are read as stored: packing them would keep a second copy of the model. Sums are float32 in an
// order that depends on the number of rows and not on the threads. Error kInternal when oneDNN refuses.
void onednn_matmul(const LinearArgs& args, const OpContext& context);

}  // namespace headrace
