// Converts bfloat16 queries to half floats, whose products with FP8 values are exact. A row is first multiplied by a
// power of two, because half floats cannot represent every bfloat16. Elements below 2^-31 of a row's largest lose bits;
// elements below 2^-39 are lost.
#pragma once
#include "headrace/ops/cuda/arch/pairs.cuh"

namespace headrace::cuda {

// The largest magnitude of a row's elements, separately for the lower and upper halves of words.
struct LargestPair {
  uint32_t bits = 0;

  __device__ void look(uint32_t pair) { bits = __vmaxu2(bits, pair & 0x7fff7fffu); }
  __device__ void look_of_lane(int mask) { bits = __vmaxu2(bits, __shfl_xor_sync(0xffffffffu, bits, mask)); }
};

// Power-of-two scale of a row, and its inverse.
struct HalvesScale {
  float factor, inverse;

  // Scales the largest element to the upper end of half floats, by at most 2^40. Rows that would need more have scores
  // of zero. The limit keeps the inverse from vanishing beside a small softmax scale.
  __device__ explicit HalvesScale(LargestPair largest) {
    const uint32_t exponent = min(268 - (max(largest.bits >> 16, largest.bits & 0xffff) >> 7), 127u + 40);
    factor = __uint_as_float(exponent << 23);
    inverse = __uint_as_float((254 - exponent) << 23);
  }
  __device__ uint32_t halves(uint32_t pair) const {
    const float2 x = unpack2<__nv_bfloat16>(pair);
    return pack2<__half>(x.x * factor, x.y * factor);
  }
  __device__ uint4 halves(uint4 x) const { return make_uint4(halves(x.x), halves(x.y), halves(x.z), halves(x.w)); }
};

}  // namespace headrace::cuda
