// Online softmax of a warpgroup's rows, one tile of scores after another. Source: Milakov & Gimelshein 2018.
#pragma once
#include <cmath>

#include "headrace/ops/cuda/arch/wgmma_mma.cuh"
#include "headrace/ops/cuda/attention/common/conditional_rescaling.cuh"
#include "headrace/ops/cuda/attention/sm90/row_factors.cuh"

namespace headrace::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// One step for a thread's two rows: the factor of accumulated values, and the base that exponents subtract.
struct Softening {
  float keep[2], base[2];
};

// Follows the largest score of a tile and returns the step for its weights, which carry the factor 2^kLift. Four
// independent chains find the maxima of both rows: one chain would wait for each result.
template <int kLift = 0, int kTiles, class Factors>
__device__ inline Softening begin_softening(const float (&s)[kTiles][4], float (&largest)[2], const Factors& to_log2) {
  float top[2][2] = {{largest[0], -INFINITY}, {largest[1], -INFINITY}};
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      top[half][n % 2] = fmaxf(top[half][n % 2], fmaxf(s[n][half * 2], s[n][half * 2 + 1]));
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) top[half][0] = fmaxf(top[half][0], top[half][1]);
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      top[half][0] = fmaxf(top[half][0], __shfl_xor_sync(0xffffffffu, top[half][0], step));
    }
  }
  Softening x;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    x.keep[half] = conditional_rescaling(top[half][0], largest[half], x.base[half], factor_of(to_log2, half));
    if constexpr (kLift != 0) x.base[half] -= kLift;
  }
  return x;
}

// Turns scores of row `half` into weights in place; exponents subtract `base`. Returns the weights' sum.
template <int kTiles>
__device__ inline float weigh(float (&s)[kTiles][4], int half, float base, float to_log2) {
  float added[2];
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float& weight = s[n][half * 2 + j];
      weight = exp2_fast(fmaf(weight, to_log2, -base));
      added[j] = n == 0 ? weight : __fadd_rn(added[j], weight);
    }
  }
  return __fadd_rn(added[0], added[1]);
}

// weigh(), and adds the weights' sum to the row's.
template <int kTiles, class Factors>
__device__ inline void soften(float (&s)[kTiles][4], int half, const Softening& x, const Factors& to_log2,
                              float (&sum)[2]) {
  const float added = weigh(s, half, x.base[half], factor_of(to_log2, half));
  sum[half] = fmaf(sum[half], x.keep[half], added);
}

// Packs weights as the operand of the PV MMA.
template <class T, int kTiles>
__device__ inline void pack(uint32_t (&w)[kTiles / 2][4], const float (&s)[kTiles][4]) {
#pragma unroll
  for (int n = 0; n < kTiles / 2; ++n) {
    w[n][0] = pack2<T>(s[2 * n][0], s[2 * n][1]);
    w[n][1] = pack2<T>(s[2 * n][2], s[2 * n][3]);
    w[n][2] = pack2<T>(s[2 * n + 1][0], s[2 * n + 1][1]);
    w[n][3] = pack2<T>(s[2 * n + 1][2], s[2 * n + 1][3]);
  }
}

// weigh() and pack() of row `half` in one; the scores stay. Returns the weights' sum.
template <class T, int kTiles>
__device__ inline float weigh_packed(uint32_t (&w)[kTiles / 2][4], const float (&s)[kTiles][4], int half, float base,
                                     float to_log2) {
  float added[2];
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    float weight[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      weight[j] = exp2_fast(fmaf(s[n][half * 2 + j], to_log2, -base));
      added[j] = n == 0 ? weight[j] : __fadd_rn(added[j], weight[j]);
    }
    w[n / 2][n % 2 * 2 + half] = pack2<T>(weight[0], weight[1]);
  }
  return __fadd_rn(added[0], added[1]);
}

template <int kTiles>
__device__ inline void scale(float (&o)[kTiles][4], const Softening& x) {
  if (!__any_sync(0xffffffffu, x.keep[0] != 1 || x.keep[1] != 1)) return;
#pragma unroll
  for (int d = 0; d < kTiles; ++d) {
    o[d][0] *= x.keep[0], o[d][1] *= x.keep[0], o[d][2] *= x.keep[1], o[d][3] *= x.keep[1];
  }
}

// If a lane's weights of a tile add up to less than this, all were below 2^kSlack, so conditional_rescaling() would
// have left the base. It is half of 2^kSlack, because exponents are rounded differently here.
constexpr float kSurelyStays = 0x1p7f;
static_assert(kSlack == 8);
// For larger bases, rounding may amount to that half.
constexpr float kMostGuessed = 0x1p20f;

// Returns true if the sums of all rows of a warp are below that. Weights carry the factor 2^kLift.
template <int kLift>
__device__ inline bool surely_stay(const float (&added)[2]) {
  constexpr float kLess = kSurelyStays * (1 << kLift);
  return !__any_sync(0xffffffffu, !(added[0] < kLess) || !(added[1] < kLess));
}

// Returns the base of a tile's exponents, unless the tile has a score far above those before. Returns -INFINITY for
// rows that saw no key yet, and for scores too large. It makes every weight infinite or NaN, so that the sums confirm
// nothing.
template <int kLift>
__device__ inline float guess_base(float largest, float to_log2) {
  const float base = __fmul_rn(largest, to_log2);
  return fabsf(base) < kMostGuessed ? base - kLift : -INFINITY;
}

// Returns the sum over the four lanes that share a row.
__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// If a lane's weights of a tile add up to more than this, the row's base is raised.
constexpr float kMostAdded = 4096;
// If a row's weights of a tile add up to more than this, the row cannot be rescaled. The power of two that divides them
// is soon no normal float.
constexpr float kMostFollowed = 0x1p100f;

// Late rescaling, after weigh(). Where a row's weights are large, raises its base by as much and divides everything
// accumulated so far. Weights too large for that make the row's sum NaN, and the row is recomputed.
template <int kTiles, int kValues, class Factors>
__device__ inline void raise(float (&s)[kTiles][4], float (&o)[kValues][4], float (&largest)[2], float (&sum)[2],
                             float (&added)[2], const Factors& to_log2) {
  Softening x;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float total = quad_sum(added[half]), before = largest[half];
    if (total > kMostAdded) largest[half] = before + __fdividef(__log2f(total), factor_of(to_log2, half));
    x.keep[half] = exp2_fast((before - largest[half]) * factor_of(to_log2, half));
    added[half] = total > kMostFollowed ? NAN : added[half] * x.keep[half];
    sum[half] *= x.keep[half];
  }
  scale(s, x);
  scale(o, x);
}

#endif

}  // namespace headrace::cuda
