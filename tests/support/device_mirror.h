// A device's kernels behind host tensors, so that every op test written for the CPU runs on them unchanged.
#pragma once
#include "headrace/kernels/op_set.h"

namespace headrace::testing_support {

// The CUDA ops, each of which copies its host arguments to device 0, runs, and copies back what it wrote; null when
// this machine has no device that the CUDA part runs on. Contexts given to them need no stream.
const OpSet* mirrored_cuda_ops();

}  // namespace headrace::testing_support
