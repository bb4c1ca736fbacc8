// The CUDA module's block_step.
#pragma once
#include "headrace/kernels/block_step.h"

namespace headrace::cuda {

void block_step(const BlockStepArgs& args, const OpContext& context);

}  // namespace headrace::cuda
