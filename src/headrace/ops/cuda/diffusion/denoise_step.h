// Denoise step on CUDA.
#pragma once
#include "headrace/ops/denoise_step.h"

namespace headrace::cuda {

void denoise_step(const DenoiseStepArgs& args, const OpContext& context);

}  // namespace headrace::cuda
