// Factors of the scores of a thread's rows in a Hopper attention kernel.
#pragma once

namespace headrace::cuda {

// One factor for each of a thread's two rows. Where one factor serves both, kernels use a float.
struct RowFactors {
  float of[2];
};
__device__ inline float factor_of(float both, int) { return both; }
__device__ inline float factor_of(const RowFactors& each, int half) { return each.of[half]; }

}  // namespace headrace::cuda
