// What the scores of a thread's rows are multiplied by, in a Hopper attention kernel.
#pragma once

namespace headrace::cuda {

// A number for each of a thread's two rows; where one is for both, a float.
struct RowFactors {
  float of[2];
};
__device__ inline float factor_of(float both, int) { return both; }
__device__ inline float factor_of(const RowFactors& each, int half) { return each.of[half]; }

}  // namespace headrace::cuda
