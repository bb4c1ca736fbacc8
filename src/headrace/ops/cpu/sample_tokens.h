// Drawing tokens on a CPU: the same for every instruction set, as its sums are double and in one order.
#pragma once
#include "headrace/ops/sample_tokens.h"

namespace headrace::cpu {

// Errors as check().
void sample_tokens(const SampleTokensArgs& args, const OpContext& context);

}  // namespace headrace::cpu
