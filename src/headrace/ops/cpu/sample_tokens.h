// sample_tokens on a CPU. One implementation serves all ISA variants: its sums are double and in a fixed order.
#pragma once
#include "headrace/ops/sample_tokens.h"

namespace headrace::cpu {

// Throws as check() does.
void sample_tokens(const SampleTokensArgs& args, const OpContext& context);

}  // namespace headrace::cpu
