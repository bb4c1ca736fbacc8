// FP8 e4m3fn of KV pools: the same bits as headrace::E4M3, which says what is rounded how.
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

// x / scale, rounded to float32 first, as on a CPU.
__device__ inline uint8_t float_to_e4m3(float x, float scale) {
  return __nv_cvt_float_to_fp8(__fdiv_rn(x, scale), __NV_SATFINITE, __NV_E4M3);
}

__device__ inline uint32_t pair_to_e4m3(float low, float high, float scale) {
  return __nv_cvt_float2_to_fp8x2(make_float2(__fdiv_rn(low, scale), __fdiv_rn(high, scale)), __NV_SATFINITE,
                                  __NV_E4M3);
}
// The same for devices before sm_89, which have no instruction for it but take hundreds: they stand in a program once.
// At each of the many places of an unrolled loop they took ptxas most of a minute.
[[maybe_unused]] static __device__ __noinline__ uint32_t called_pair_to_e4m3(float low, float high, float scale) {
  return pair_to_e4m3(low, high, scale);
}

// Two of them, the first in the low byte.
__device__ inline uint32_t floats_to_e4m3(float low, float high, float scale) {
#if __CUDA_ARCH__ >= 890
  return pair_to_e4m3(low, high, scale);
#else
  return called_pair_to_e4m3(low, high, scale);
#endif
}

// Two codes as a pair of 16-bit floats, which hold them exactly.
template <class T>
__device__ inline uint32_t e4m3_to_pair(uint16_t codes) {
  const __half2 halves = static_cast<__half2>(__nv_cvt_fp8x2_to_halfraw2(codes, __NV_E4M3));
  if constexpr (std::is_same_v<T, __half>) {
    return *reinterpret_cast<const uint32_t*>(&halves);
  } else {
    const __nv_bfloat162 pair = __float22bfloat162_rn(__half22float2(halves));
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
}

// Eight codes as eight 16-bit floats.
template <class T>
__device__ inline uint4 e4m3_to_floats(uint32_t low, uint32_t high) {
  return {e4m3_to_pair<T>(static_cast<uint16_t>(low)), e4m3_to_pair<T>(static_cast<uint16_t>(low >> 16)),
          e4m3_to_pair<T>(static_cast<uint16_t>(high)), e4m3_to_pair<T>(static_cast<uint16_t>(high >> 16))};
}

}  // namespace headrace::cuda
