// Softmax sums over parts of a row's keys, and how two of them are added. Source: Dao et al. 2023, Flash-Decoding.
#pragma once
#include <cmath>

namespace headrace::cuda {

constexpr float kLog2e = 1.4426950408889634f;

__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Every step is rounded as written, so that all who add the same parts in the same order have the same bits.
struct PartialState {
  float largest = -INFINITY, sum = 0;  // largest score in base 2; 0 when no key was seen

  // What this part's values are multiplied by in `all`.
  __device__ float factor(const PartialState& all) const {
    return sum == 0 ? 0.0f : exp2_fast(__fadd_rn(largest, -all.largest));
  }
  __device__ PartialState joined(const PartialState& next) const {
    if (next.sum == 0) return *this;
    if (sum == 0) return next;
    PartialState all{fmaxf(largest, next.largest), 0};
    all.sum = __fmaf_rn(next.sum, next.factor(all), __fmul_rn(sum, factor(all)));
    return all;
  }
  __device__ static float joined_value(float before, float before_factor, float next, float next_factor) {
    return __fmaf_rn(next, next_factor, __fmul_rn(before, before_factor));
  }
  // Natural log of the sum of exp(scores).
  __device__ float log_sum() const {
    return sum == 0 ? -INFINITY : __fmul_rn(__fadd_rn(largest, __log2f(sum)), 0.6931471805599453f);
  }
};

}  // namespace headrace::cuda
