// silu for results that are rounded to 16 bits.
#pragma once

namespace headrace::cuda {

// x / (1 + e^-x) without the scaling that keeps results exact below 2^-126.
__device__ inline float lean_silu(float x) {
  float e, factor;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x * -1.4426950408889634f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(factor) : "f"(1 + e));
  return x * factor;
}

}  // namespace headrace::cuda
