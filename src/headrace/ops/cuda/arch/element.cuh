// Elements of a dtype known at run time, and strided rows of them.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "headrace/core/dtype_enum.h"
#include "headrace/ops/activation.h"

namespace headrace::cuda {

__device__ inline float load(const void* data, DType type, int64_t i) {
  switch (type) {
    case DType::kBF16: return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
    case DType::kF16: return __half2float(static_cast<const __half*>(data)[i]);
    default: return static_cast<const float*>(data)[i];
  }
}

__device__ inline void store(void* data, DType type, int64_t i, float value) {
  switch (type) {
    case DType::kBF16: static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16_rn(value); return;
    case DType::kF16: static_cast<__half*>(data)[i] = __float2half_rn(value); return;
    default: static_cast<float*>(data)[i] = value;
  }
}

// Returns the value rounded to `type`.
__device__ inline float rounded(DType type, float value) {
  switch (type) {
    case DType::kBF16: return __bfloat162float(__float2bfloat16_rn(value));
    case DType::kF16: return __half2float(__float2half_rn(value));
    default: return value;
  }
}

// Rows of a [tokens, heads, dim] or [tokens, dim] tensor, the last dimension contiguous.
struct Rows {
  void* data = nullptr;
  DType type = DType::kF32;
  int64_t token_stride = 0, head_stride = 0;

  Rows() = default;
  // From a TensorView. A template, so that kernels need not include tensor.h.
  template <class View>
  explicit Rows(const View& x)
      : data(x.data()),
        type(x.dtype()),
        token_stride(x ? x.stride(0) : 0),
        head_stride(x && x.rank() == 3 ? x.stride(1) : 0) {}

  __device__ int64_t at(int64_t token, int64_t head = 0) const { return token * token_stride + head * head_stride; }
  __device__ float get(int64_t token, int64_t head, int64_t d) const { return load(data, type, at(token, head) + d); }
  __device__ void set(int64_t token, int64_t head, int64_t d, float v) const {
    store(data, type, at(token, head) + d, v);
  }
};

__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) x += __shfl_xor_sync(0xffffffffu, x, lane);
  return x;
}

__device__ inline float warp_max(float x) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lane));
  return x;
}

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ inline float silu(float x) { return x * sigmoid(x); }
// For results that are rounded to 16 bits: a few float32 ulps from silu, a third of its instructions.
__device__ inline float quick_silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }
// Returns the silu for a result of type T.
template <class T>
__device__ inline float silu_of(float x) {
  return sizeof(T) == 2 ? quick_silu(x) : silu(x);
}
__device__ inline float silu_for(DType type, float x) { return type == DType::kF32 ? silu(x) : quick_silu(x); }
__device__ inline float gelu(float x) { return 0.5f * x * (1 + tanhf(0.7978845608f * (x + 0.044715f * x * x * x))); }
__device__ inline float activated(Activation of, float x) { return of == Activation::kSilu ? silu(x) : gelu(x); }

}  // namespace headrace::cuda
