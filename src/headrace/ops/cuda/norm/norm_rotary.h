// Fused norm_rotary and store_kv.
#pragma once
#include "headrace/ops/norm_rotary.h"
#include "headrace/ops/op_context.h"
#include "headrace/ops/store_kv.h"

namespace headrace::cuda {

// Runs norm_rotary, whose k must be to.k, then store_kv, in one kernel. Positions and slots must be written as early as
// DeviceMetadata requires. Returns false, and does nothing, if the call has too many tokens, or sizes, dtypes or
// alignments that the kernel does not support.
bool norm_rotary_store(const NormRotaryArgs& args, const StoreKVArgs& to, const OpContext& context);

}  // namespace headrace::cuda
