// When a softmax follows a row's largest score: one rule for all kernels whose bits must agree. Source:
// FlashAttention-4, conditional rescaling.
#pragma once
#include "headrace/ops/cuda/attention/common/merge_states.cuh"

namespace headrace::cuda {

// The score that exponents are less follows a row's largest one only when that is more than this (base 2) above it:
// weights stay below 2^kSlack, and earlier values are seldom multiplied. A row decides for itself, so its bits do not
// depend on the others.
constexpr float kSlack = 8;

// Makes `base` what exponents are less from here on, where the largest score of the tile and of what came before is
// `top`, and returns what earlier values are to be multiplied by: 1 exactly where `largest` stays.
__device__ inline float conditional_rescaling(float top, float& largest, float& base, float to_log2) {
  const float before = largest;
  if (__fmul_rn(__fadd_rn(top, -before), to_log2) > kSlack) largest = top;
  base = largest == -INFINITY ? 0.0f : __fmul_rn(largest, to_log2);
  return exp2_fast(__fadd_rn(__fmul_rn(before, to_log2), -base));
}

// Half floats hold weights as long as scores are below this (base 2): larger ones are rounded by so much that weights
// leave [0, 2^kSlack].
constexpr float kMostForHalves = 0x1p22f;

// The largest score (base 2) that belongs to a sum of weights, which were multiplied by 2^kLift. kHalves: over a pool
// of codes; then a row with larger scores than that gets a sum of NaN, and is done again by itself.
template <bool kHalves, int kLift>
__device__ inline float end_softmax(float largest, float to_log2, float& sum) {
  const float base = __fmul_rn(largest, to_log2);
  if (kHalves && largest != -INFINITY && !(fabsf(base) < kMostForHalves)) sum = NAN;
  return base - kLift;
}

}  // namespace headrace::cuda
