// Queries of bfloat16 as half floats, whose products with codes are exact. A row is multiplied by a power of two first,
// since half floats do not hold every bfloat16: what is below 2^-31 of a row's largest element loses bits, what is
// below 2^-39 is lost.
#pragma once
#include "headrace/ops/cuda/arch/pairs.cuh"

namespace headrace::cuda {

// The largest size of a row's elements, of those in the lower and in the upper half of words.
struct LargestPair {
  uint32_t bits = 0;

  __device__ void look(uint32_t pair) { bits = __vmaxu2(bits, pair & 0x7fff7fffu); }
  __device__ void look_of_lane(int mask) { bits = __vmaxu2(bits, __shfl_xor_sync(0xffffffffu, bits, mask)); }
};

// The power of two of a row, and what undoes it.
struct HalvesScale {
  float factor, inverse;

  // Brings the largest element to the upper end of half floats. 2^40 at most: rows of less than that asks for have
  // scores of nothing, and what they are multiplied by does not vanish beside a small scale.
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
