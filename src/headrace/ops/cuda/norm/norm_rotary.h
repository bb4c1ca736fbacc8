// norm_rotary and store_kv by one kernel.
#pragma once
#include "headrace/ops/norm_rotary.h"
#include "headrace/ops/op_context.h"
#include "headrace/ops/store_kv.h"

namespace headrace::cuda {

// norm_rotary, whose k is to.k, then store_kv, of few tokens; of a batch whose positions and slots are there as early
// as DeviceMetadata says. False when the call is not of that form: then nothing was done.
bool norm_rotary_store(const NormRotaryArgs& args, const StoreKVArgs& to, const OpContext& context);

}  // namespace headrace::cuda
