// GEMM sequence: up to four consecutive GEMMs of small M, run by one persistent kernel of sm_90 that reads their
// weights without a pause.
#pragma once
#include <span>

#include "headrace/ops/cuda/runtime/stream.h"
#include "headrace/ops/fused_linear.h"

namespace headrace::cuda {

// Returns true if one kernel can run `calls`, each of which choose_gemm() gives to the sequence and all but the last of
// which fit: at most kMostSequenceSteps with one M and one dtype, whose parts of shared memory fit beside each other.
// On a stream without a grid barrier only one call fits.
bool fit_one_sequence(std::span<const FusedLinearArgs> calls, const Stream& stream);
// Runs `calls`, one or more that fit, as one kernel. A call may read what the calls before it write, and may overwrite
// what they read. Throws kCuda.
void run_gemm_sequence(std::span<const FusedLinearArgs> calls, const Stream& stream);

}  // namespace headrace::cuda
