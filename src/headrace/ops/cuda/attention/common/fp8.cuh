// FP8 e4m3fn of KV pools, with the same bits as headrace::E4M3, which defines the rounding.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

namespace headrace::cuda {

__device__ inline float e4m3_to_float(uint8_t code) {
  return __half2float(static_cast<__half>(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3)));
}

// Returns x / scale in FP8. The quotient is rounded to float32 first, as on a CPU.
__device__ inline uint8_t float_to_e4m3(float x, float scale) {
  return __nv_cvt_float_to_fp8(__fdiv_rn(x, scale), __NV_SATFINITE, __NV_E4M3);
}

__device__ inline uint32_t pair_to_e4m3(float low, float high, float scale) {
  return __nv_cvt_float2_to_fp8x2(make_float2(__fdiv_rn(low, scale), __fdiv_rn(high, scale)), __NV_SATFINITE,
                                  __NV_E4M3);
}
// Out-of-line version for devices before sm_89, which need hundreds of instructions for it. Inlined into unrolled loops
// it costs ptxas most of a minute.
[[maybe_unused]] static __device__ __noinline__ uint32_t called_pair_to_e4m3(float low, float high, float scale) {
  return pair_to_e4m3(low, high, scale);
}

// Returns both in FP8, the first in the low byte.
__device__ inline uint32_t floats_to_e4m3(float low, float high, float scale) {
#if __CUDA_ARCH__ >= 890
  return pair_to_e4m3(low, high, scale);
#else
  return called_pair_to_e4m3(low, high, scale);
#endif
}

// Returns a word's four FP8 values as two pairs of half floats, which represent them exactly.
__device__ inline uint2 e4m3_to_halves(uint32_t codes) {
#if __CUDA_ARCH__ >= 890
  // The instruction takes either half of a word. Written with shifts, each second pair costs a shift.
  uint2 pairs;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2; cvt.rn.f16x2.e4m3x2 %0, low; cvt.rn.f16x2.e4m3x2 %1, high; }"
      : "=r"(pairs.x), "=r"(pairs.y)
      : "r"(codes));
  return pairs;
#else
  const auto pair = [](uint32_t two) {
    const auto halves = static_cast<__half2>(__nv_cvt_fp8x2_to_halfraw2(static_cast<uint16_t>(two), __NV_E4M3));
    return *reinterpret_cast<const uint32_t*>(&halves);
  };
  return {pair(codes), pair(codes >> 16)};
#endif
}

// Returns a word's four FP8 values as two pairs of 16-bit floats.
template <class T>
__device__ inline uint2 e4m3_to_pairs(uint32_t codes) {
  const uint2 halves = e4m3_to_halves(codes);
  if constexpr (std::is_same_v<T, __half>) return halves;
  const auto pair = [](uint32_t two) {
    const __nv_bfloat162 x = __float22bfloat162_rn(__half22float2(*reinterpret_cast<const __half2*>(&two)));
    return *reinterpret_cast<const uint32_t*>(&x);
  };
  return {pair(halves.x), pair(halves.y)};
}

// Returns eight FP8 values as eight 16-bit floats.
template <class T>
__device__ inline uint4 e4m3_to_floats(uint32_t low, uint32_t high) {
  const uint2 x = e4m3_to_pairs<T>(low), y = e4m3_to_pairs<T>(high);
  return {x.x, x.y, y.x, y.y};
}

}  // namespace headrace::cuda
