// Conditional rescaling of online softmax: one rule for all kernels whose bits must agree. Source: FlashAttention-4.
#pragma once
#include "headrace/ops/cuda/attention/common/merge_states.cuh"

namespace headrace::cuda {

// The running maximum follows a row's largest score only if that is more than this above it (base 2). Weights stay
// below 2^kSlack, and accumulated values are seldom rescaled. Each row decides for itself, so its bits do not depend on
// other rows.
constexpr float kSlack = 8;

// `top` is the largest score of the tile and of all keys before. Updates the running maximum `largest` and sets `base`,
// which exponents subtract from here on. Returns the factor of the accumulated values: exactly 1 if `largest` stays.
// `to_log2` converts scores to base 2.
__device__ inline float conditional_rescaling(float top, float& largest, float& base, float to_log2) {
  const float before = largest;
  if (__fmul_rn(__fadd_rn(top, -before), to_log2) > kSlack) largest = top;
  base = largest == -INFINITY ? 0.0f : __fmul_rn(largest, to_log2);
  return exp2_fast(__fadd_rn(__fmul_rn(before, to_log2), -base));
}

// Half floats represent weights if scores are below this (base 2). Larger scores are rounded so coarsely that weights
// leave [0, 2^kSlack].
constexpr float kMostForHalves = 0x1p22f;

// Returns the largest score (base 2) that belongs to a sum of weights, which carry the factor 2^kLift. kHalves (FP8
// pool): a row with scores beyond kMostForHalves gets the sum NaN and is recomputed.
template <bool kHalves, int kLift>
__device__ inline float end_softmax(float largest, float to_log2, float& sum) {
  const float base = __fmul_rn(largest, to_log2);
  if (kHalves && largest != -INFINITY && !(fabsf(base) < kMostForHalves)) sum = NAN;
  return base - kLift;
}

}  // namespace headrace::cuda
