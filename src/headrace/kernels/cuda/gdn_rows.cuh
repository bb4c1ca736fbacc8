// The recurrence of Gated DeltaNet for heads of 128 x 128: 16 warps hold one head's state in registers, eight rows a
// warp and four columns a lane, so that a row is one coalesced read of 512 bytes. What a token does to a state is
// written once, here: the fused decode step and the recurrence give the same bits.
#pragma once
#include "headrace/kernels/cuda/element.cuh"
#include "headrace/kernels/cuda/gdn_gate.cuh"

namespace headrace::cuda {

constexpr int kHeadDim = 128, kHeadWarps = 16, kHeadThreads = kHeadWarps * 32, kWarpRows = 8;

// Four neighbouring elements, as float.
template <class T>
__device__ inline float4 load4(const T* p);
template <>
__device__ inline float4 load4<float>(const float* p) {
  return *reinterpret_cast<const float4*>(p);
}
template <>
__device__ inline float4 load4<__nv_bfloat16>(const __nv_bfloat16* p) {
  const uint2 x = *reinterpret_cast<const uint2*>(p);
  return {__uint_as_float(x.x << 16), __uint_as_float(x.x & 0xffff0000u), __uint_as_float(x.y << 16),
          __uint_as_float(x.y & 0xffff0000u)};
}
template <>
__device__ inline float4 load4<__half>(const __half* p) {
  const uint2 x = *reinterpret_cast<const uint2*>(p);
  const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&x.x));
  const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&x.y));
  return {low.x, low.y, high.x, high.y};
}

__device__ inline float dot4(const float4& a, const float4& b) {
  return fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, a.w * b.w)));
}
__device__ inline float4 times(const float4& a, float b) { return {a.x * b, a.y * b, a.z * b, a.w * b}; }

// Sums each of eight values over the warp; the lane gets the sum of value lane / 4.
__device__ inline float warp_sum_of_eight(const float (&x)[kWarpRows], int lane) {
  float a[4], b[2];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool upper = (lane & 16) != 0;
    a[i] = (upper ? x[i + 4] : x[i]) + __shfl_xor_sync(0xffffffffu, upper ? x[i] : x[i + 4], 16);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const bool upper = (lane & 8) != 0;
    b[i] = (upper ? a[i + 2] : a[i]) + __shfl_xor_sync(0xffffffffu, upper ? a[i] : a[i + 2], 8);
  }
  const bool upper = (lane & 4) != 0;
  float sum = (upper ? b[1] : b[0]) + __shfl_xor_sync(0xffffffffu, upper ? b[0] : b[1], 4);
  sum += __shfl_xor_sync(0xffffffffu, sum, 2);
  return sum + __shfl_xor_sync(0xffffffffu, sum, 1);
}

// The eight state rows of a warp.
struct WarpState {
  float4 row[kWarpRows];

  // `head` is a head's state [128, 128], null for zeros.
  __device__ void load(const float* head, int warp, int lane) {
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
      row[r] = head == nullptr
                   ? float4{}
                   : __ldcs(reinterpret_cast<const float4*>(head + (warp * kWarpRows + r) * kHeadDim) + lane);
    }
  }
  __device__ void save(float* head, int warp, int lane) const {
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
      __stcs(reinterpret_cast<float4*>(head + (warp * kWarpRows + r) * kHeadDim) + lane, row[r]);
    }
  }

  // One token: q and k as they come from the convolution, v of row lane / 4. Returns the output of that row.
  __device__ float step(float4 q, float4 k, float v, float decay, float beta, int lane) {
    q = times(q, gdn_unit_factor(warp_sum(dot4(q, q))) * 0.08838834764831845f);  // 128^-0.5
    k = times(k, gdn_unit_factor(warp_sum(dot4(k, k))));
    const float kq = warp_sum(dot4(q, k));
    float x[kWarpRows];
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) x[r] = dot4(row[r], k);
    const float sk = warp_sum_of_eight(x, lane);
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) x[r] = dot4(row[r], q);
    const float sq = warp_sum_of_eight(x, lane);
    const float d = beta * fmaf(-decay, sk, v);
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
      const float dr = __shfl_sync(0xffffffffu, d, 4 * r);
      row[r] = {fmaf(dr, k.x, decay * row[r].x), fmaf(dr, k.y, decay * row[r].y), fmaf(dr, k.z, decay * row[r].z),
                fmaf(dr, k.w, decay * row[r].w)};
    }
    return fmaf(d, kq, decay * sq);
  }
};

}  // namespace headrace::cuda
