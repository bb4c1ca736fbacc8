// Dense matrix products of many rows through oneDNN. The only file that names it.
#pragma once
#include "headrace/kernels/linear.h"

namespace headrace {

// Whether oneDNN is built in and runs these dtypes: x and weight both float32 or both bfloat16, y and bias of theirs or
// float32; and, of bfloat16 that it has to widen, whether there are enough rows.
bool onednn_supports(const LinearArgs& args);

// As linear. Weights are read as stored: packing them would keep a second copy of the model. Sums are float32 in an
// order that depends on the number of rows. Error kInternal when oneDNN refuses.
void onednn_matmul(const LinearArgs& args, const OpContext& context);
// The same of bfloat16 where the processor has no AVX-512, without which oneDNN does not multiply it: in float32.
void onednn_matmul_widened(const LinearArgs& args, const OpContext& context);

}  // namespace headrace
