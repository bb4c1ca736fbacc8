// Gated DeltaNet recurrence for heads of 128 x 128. Eight lanes keep one row of the state in registers, four float4
// each. A warp thus reads four rows in lines of 128 bytes, and a row's sum takes three shuffles.
//
// All kernels share this update of a row, so the fused decode step and the recurrence give the same bits for any number
// of rows per warp. q and k are used as the convolution returns them; TokenFactors holds their normalisation factors.
#pragma once
#include <type_traits>

#include "headrace/ops/cuda/arch/element.cuh"
#include "headrace/ops/cuda/gdn/gdn_gate.cuh"

namespace headrace::cuda {

constexpr int kHeadDim = 128, kHeadPieces = kHeadDim / 4;
constexpr int kRowLanes = 8, kLanePieces = kHeadPieces / kRowLanes;
constexpr int kWarpRows = 32 / kRowLanes;  // rows per warp at a time

// Four consecutive elements as stored, and converted to float.
template <class T>
using Bits4 = std::conditional_t<sizeof(T) == 2, uint2, float4>;

template <class T>
__device__ inline Bits4<T> load_bits4(const T* p) {
  return *reinterpret_cast<const Bits4<T>*>(p);
}
template <class T>
__device__ inline float4 floats(const Bits4<T>& x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else if constexpr (std::is_same_v<T, __half>) {
    const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&x.x));
    const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&x.y));
    return {low.x, low.y, high.x, high.y};
  } else {
    return {__uint_as_float(x.x << 16), __uint_as_float(x.x & 0xffff0000u), __uint_as_float(x.y << 16),
            __uint_as_float(x.y & 0xffff0000u)};
  }
}
template <class T>
__device__ inline float4 load4(const T* p) {
  return floats<T>(load_bits4(p));
}

// Returns one float4's share of a vector's squared length; the warp's sum over its 32 float4 is the squared length.
__device__ inline float sum_of_squares(const float4& x) {
  return fmaf(x.x, x.x, fmaf(x.y, x.y, fmaf(x.z, x.z, x.w * x.w)));
}

// Factors of a token. With r = 1 / |k| and s = 1 / (|q| sqrt(128)): S' = decay S + d k^T, d = beta r (v - decay r S k),
// y = s S' q. d = push v + pull S k takes one instruction once S k is known.
struct TokenFactors {
  float decay, pull, push, query;

  __device__ TokenFactors(float decay, float beta, float q_squared, float k_squared)
      : decay(decay), query(gdn_unit_factor(q_squared) * 0.08838834764831845f) {
    const float unit = gdn_unit_factor(k_squared);
    push = beta * unit;
    pull = -(decay * unit) * push;
  }
};

// A lane's share of a row or of a vector of the same length. Element i is float4 number lane % 8 + 8 i.
using RowPieces = float4[kLanePieces];

// Same share of a vector in shared memory. It is loaded at each use, so it occupies no registers in between.
struct SharedPieces {
  const float4* vector;  // 32 float4
  int lane;

  __device__ float4 operator[](int i) const {
    float4 x;
    const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(vector + lane % kRowLanes + i * kRowLanes));
    asm volatile("ld.volatile.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "r"(at)
                 : "memory");
    return x;
  }
};

// Computes the lane's partial dot product of each of its rows with x. The four components form independent sums.
template <int kRows, class Pieces>
__device__ inline void dot_parts(const RowPieces (&row)[kRows], const Pieces& x, float (&part)[kRows]) {
  float4 sum[kRows];
#pragma unroll
  for (int i = 0; i < kLanePieces; ++i) {
    const float4 b = x[i];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float4 a = row[r][i];
      sum[r] = i == 0 ? float4{a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w}
                      : float4{fmaf(a.x, b.x, sum[r].x), fmaf(a.y, b.y, sum[r].y), fmaf(a.z, b.z, sum[r].z),
                               fmaf(a.w, b.w, sum[r].w)};
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) part[r] = (sum[r].x + sum[r].y) + (sum[r].z + sum[r].w);
}

// Returns the sum over a row's eight lanes, in each of them.
__device__ inline float row_sum(float part) {
#pragma unroll
  for (int lane = kRowLanes / 2; lane > 0; lane /= 2) part += __shfl_xor_sync(0xffffffffu, part, lane);
  return part;
}
// Returns the same sum, in the same order, from the eight partial sums in sequence.
__device__ inline float row_sum_of(const float4& low, const float4& high) {
  return ((low.x + high.x) + (low.z + high.z)) + ((low.y + high.y) + (low.w + high.w));
}

// State rows of a warp, kRows per group of eight lanes. Row r is row first_row + 4 r + lane / 8 of the head.
template <int kRows>
struct StateRows {
  RowPieces row[kRows];

  // `head` is a head's state [128, 128]; null loads zeros.
  __device__ void load(const float* head, int first_row, int lane) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < kLanePieces; ++i) {
        row[r][i] =
            head == nullptr ? float4{} : __ldcs(reinterpret_cast<const float4*>(head) + at(first_row, r, i, lane));
      }
    }
  }
  __device__ void save(float* head, int first_row, int lane) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < kLanePieces; ++i) {
        __stcs(reinterpret_cast<float4*>(head) + at(first_row, r, i, lane), row[r][i]);
      }
    }
  }

  // Updates the rows by one token: S := decay S + d k^T. `pushed` is push v of each row. meanwhile() runs while the dot
  // products are reduced.
  template <class Pieces, class Meanwhile>
  __device__ void step(const Pieces& k, const float (&pushed)[kRows], float decay, float pull,
                       const Meanwhile& meanwhile) {
    float d[kRows];
    dot_parts(row, k, d);
    meanwhile();
#pragma unroll
    for (int r = 0; r < kRows; ++r) d[r] = fmaf(pull, row_sum(d[r]), pushed[r]);
#pragma unroll
    for (int i = 0; i < kLanePieces; ++i) {
      const float4 of_k = k[i];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        float4& s = row[r][i];
        s = {fmaf(d[r], of_k.x, decay * s.x), fmaf(d[r], of_k.y, decay * s.y), fmaf(d[r], of_k.z, decay * s.z),
             fmaf(d[r], of_k.w, decay * s.w)};
      }
    }
  }

 private:
  static __device__ int at(int first_row, int r, int i, int lane) {
    return (first_row + kWarpRows * r + lane / kRowLanes) * kHeadPieces + lane % kRowLanes + i * kRowLanes;
  }
};

// q, k, v and gates of one token and head in shared memory. The CTA has 16 warps with the whole state of the head, or
// some of its rows. A warp's `first_row` counts from the head's first row.
struct HeadToken {
  static constexpr int kThreads = 512, kRows = kHeadDim / (kThreads / 32 * kWarpRows);  // per lane

  float4 q[kHeadPieces], k[kHeadPieces];
  float v[kHeadDim], decay, beta;

  // Element i of the 384 values q, k, v.
  __device__ float& value(int i) {
    return i < 2 * kHeadDim ? reinterpret_cast<float*>(i < kHeadDim ? q : k)[i % kHeadDim] : v[i - 2 * kHeadDim];
  }

  __device__ TokenFactors factors(int lane) const {
    return {decay, beta, warp_sum(sum_of_squares(q[lane])), warp_sum(sum_of_squares(k[lane]))};
  }
  template <int kLaneRows>
  __device__ void move(StateRows<kLaneRows>& state, const TokenFactors& f, int first_row, int lane) const {
    float pushed[kLaneRows];
#pragma unroll
    for (int r = 0; r < kLaneRows; ++r) pushed[r] = f.push * v[first_row + kWarpRows * r + lane / kRowLanes];
    state.step(SharedPieces{k, lane}, pushed, f.decay, f.pull, [] {});
  }
  // Computes the outputs of the lane's rows, from the state after the token.
  template <int kLaneRows>
  __device__ void outputs(const StateRows<kLaneRows>& state, const TokenFactors& f, int lane,
                          float (&y)[kLaneRows]) const {
    dot_parts(state.row, SharedPieces{q, lane}, y);
#pragma unroll
    for (int r = 0; r < kLaneRows; ++r) y[r] = f.query * row_sum(y[r]);
  }
};

}  // namespace headrace::cuda
