// Partial softmax states of KV splits and their merge (log-sum-exp). Source: Dao et al. 2023, Flash-Decoding.
#pragma once
#include <cmath>

namespace headrace::cuda {

constexpr float kLog2e = 1.4426950408889634f;

__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// State of one KV split. Every step is rounded as written, so all kernels that merge the same splits in the same order
// get the same bits.
struct PartialState {
  float largest = -INFINITY, sum = 0;  // largest score (base 2); sum is 0 if no key was seen

  // Returns the factor of this split's values in `all`.
  __device__ float factor(const PartialState& all) const {
    return sum == 0 ? 0.0f : exp2_fast(__fadd_rn(largest, -all.largest));
  }
  // Returns this state merged with `next`, the later split.
  __device__ PartialState merged_with(const PartialState& next) const {
    if (next.sum == 0) return *this;
    if (sum == 0) return next;
    PartialState all{fmaxf(largest, next.largest), 0};
    all.sum = __fmaf_rn(next.sum, next.factor(all), __fmul_rn(sum, factor(all)));
    return all;
  }
  // Returns one merged column, given both values and their factors.
  __device__ static float merged_value(float before, float before_factor, float next, float next_factor) {
    return __fmaf_rn(next, next_factor, __fmul_rn(before, before_factor));
  }
  // Returns the natural log of the sum of exp(scores), or -infinity if no key was seen.
  __device__ float log_sum() const {
    return sum == 0 ? -INFINITY : __fmul_rn(__fadd_rn(largest, __log2f(sum)), 0.6931471805599453f);
  }
};

}  // namespace headrace::cuda
