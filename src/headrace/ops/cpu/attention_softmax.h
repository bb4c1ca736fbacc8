// Online softmax: one row's update for a tile of scores. Scale and soft cap are applied only here. For kernel sources
// only: internal linkage in every variant.
#pragma once
#include "headrace/ops/cpu/paged_attention.h"
#include "headrace/ops/cpu/simd.h"

namespace headrace::cpu {
namespace {

struct SoftmaxRule {
  float scale, logit_cap;
  // [64] of an int8 tile, else null: factors of the keys' scores, with `scale`, and of their probabilities.
  const float *key_scales = nullptr, *value_scales = nullptr;
};

// Online softmax state of a row: the largest score so far, the sum of exp(score - largest) and, after an update, the
// factor by which previous sums must be multiplied.
struct RowState {
  float *largest, *sum, *rescale;
};

// Absolute error below 2e-7. 1 - 2 / (exp(2 x) + 1) cancels near 0; a series is used there.
[[gnu::always_inline]] inline Vec tanh(Vec x) {
  const Vec far = 1.0f - 2.0f / (exp(2.0f * x) + 1.0f);
  const Vec s = x * x;
  const Vec near = x * (1.0f + s * (-1.0f / 3 + s * (2.0f / 15 + s * (-17.0f / 315))));
  return s < 0.04f ? near : far;
}

template <class V>
[[gnu::always_inline]] inline V larger(V a, V b) {
  return a > b ? a : b;
}

// Returns the largest lane, reduced as a tree.
[[gnu::always_inline]] inline float largest_of(Vec v) {
#if defined(__AVX512F__)
  typedef float Vec8 __attribute__((vector_size(32)));
  const Vec8 v8 = larger<Vec8>(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7),
                               __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
#else
  const auto v8 = v;
#endif
#if defined(__AVX2__)
  typedef float Vec4 __attribute__((vector_size(16)));
  const Vec4 v4 =
      larger<Vec4>(__builtin_shufflevector(v8, v8, 0, 1, 2, 3), __builtin_shufflevector(v8, v8, 4, 5, 6, 7));
#else
  const auto v4 = v8;
#endif
  return larger(larger(v4[0], v4[1]), larger(v4[2], v4[3]));
}

[[gnu::always_inline]] inline Vec select(Vec v, uint64_t visible, float otherwise) {
  IntVec lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = 1 << i;
  const IntVec bits = IntVec{} + static_cast<int32_t>(visible & 0xffff);
  return (bits & lane) != 0 ? v : Vec{} + otherwise;
}

// exp(x) for x <= 0, relative error below 3e-7 + 1e-7 |x|. Results below 2^-126 become 2^-126; NaN stays NaN.
[[gnu::always_inline]] inline Vec exp_below_0(Vec x) {
#if defined(__AVX512F__)
  const __m512 t = reinterpret_cast<__m512>(x * 1.44269504f);
  const __m512 bounded = _mm512_maskz_max_ps(0xffff, _mm512_set1_ps(-126.0f), t);  // returns t if it is NaN
  const __m512 n = _mm512_maskz_roundscale_ps(0xffff, bounded, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const Vec f = reinterpret_cast<Vec>(bounded) - reinterpret_cast<Vec>(n);
  Vec p = f * 1.535336188e-4f + 1.339887440e-3f;  // 2^f on [-0.5, 0.5]: Cephes' exp2f
  p = p * f + 9.618437358e-3f;
  p = p * f + 5.550332471e-2f;
  p = p * f + 2.402264791e-1f;
  p = p * f + 6.931472029e-1f;
  p = p * f + 1.0f;
  return reinterpret_cast<Vec>(_mm512_maskz_scalef_ps(0xffff, reinterpret_cast<__m512>(p), n));
#else
  return exp(x);
#endif
}

[[gnu::always_inline]] inline void store_probabilities(float* to, Vec v) { store(to, v); }
[[gnu::always_inline]] inline void store_probabilities(uint16_t* to, Vec v) {
#ifdef __AVX512BF16__
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(reinterpret_cast<__m512>(v))));
#else
  store_halves(to, v, FloatType::kBF16);
#endif
}

template <int kVecs>
inline bool has_nan(const Vec (&values)[kVecs]) {
  for (const Vec& v : values) {
    for (int i = 0; i < kLanes; ++i) {
      if (v[i] != v[i]) return true;
    }
  }
  return false;
}

// Updates a row's state and writes to[64] = exp(score - largest) value_scale, 0 for invisible keys.
template <class Probability>
[[gnu::always_inline]] inline void soften_row(const float* scores, uint64_t visible, SoftmaxRule rule, RowState row,
                                              Probability* to) {
  constexpr int kVecs = kKeyTile / kLanes;
  Vec s[kVecs];
  Vec high = Vec{} - __builtin_inff();
  for (int v = 0; v < kVecs; ++v) {
    s[v] = load(scores + v * kLanes);
    s[v] *= rule.key_scales != nullptr ? load(rule.key_scales + v * kLanes) : Vec{} + rule.scale;
    if (rule.logit_cap > 0) s[v] = rule.logit_cap * tanh(s[v] / rule.logit_cap);
    if (visible != ~uint64_t{0}) s[v] = select(s[v], visible >> (v * kLanes), -__builtin_inff());
    high = high > s[v] ? high : s[v];
  }
  const float before = *row.largest, here = largest_of(high);
  const float largest = before > here ? before : here;
  if (visible == 0 || (largest == -__builtin_inff() && !has_nan(s))) {  // a comparison with NaN may lose it
    for (int v = 0; v < kVecs; ++v) store_probabilities(to + v * kLanes, Vec{});
    return;
  }
  Vec total = {};
  for (int v = 0; v < kVecs; ++v) {
    s[v] = exp_below_0(s[v] - largest);
    Vec weight = s[v];
    if (rule.value_scales != nullptr) weight *= load(rule.value_scales + v * kLanes);
    if (visible != ~uint64_t{0}) {
      s[v] = select(s[v], visible >> (v * kLanes), 0);
      weight = select(weight, visible >> (v * kLanes), 0);  // an invisible key's scale may be NaN
    }
    total += s[v];
    store_probabilities(to + v * kLanes, weight);
  }
  if (before != largest) *row.rescale = exp(Vec{} + (before - largest))[0];
  *row.sum = *row.sum * *row.rescale + sum(total);
  *row.largest = largest;
}

}  // namespace
}  // namespace headrace::cpu
