// y = x W^T in pair products of bf16, for some rows: weights are read once, as they lie, and no operand is widened. A
// matrix library packs its weights first, which is most of the work of few rows. For kernel sources only: internal
// linkage in every build of a source.
#pragma once
#include "headrace/kernels/cpu/linear.h"
#include "headrace/kernels/cpu/read_ahead.h"
#include "headrace/kernels/cpu/simd.h"

#ifdef __AVX512BF16__

namespace headrace::cpu {
namespace {

constexpr int kPairRows = 4, kPairOuts = 4;  // of a tile: sixteen running sums
constexpr long kPairDepth = 32;              // elements of a vector

// Sixteen vectors to one: lane i is the sum of v[i].
[[gnu::always_inline]] inline __m512 sums_of(const __m512 (&v)[16]) {
  __m512 quarter[4];  // lane 4 l + i: of v[4 q + i], the part in its 128-bit lane l
#pragma GCC unroll 4
  for (int q = 0; q < 4; ++q) {
    const __m512 *const a = v + 4 * q, low = _mm512_unpacklo_ps(a[0], a[1]) + _mm512_unpackhi_ps(a[0], a[1]),
                        high = _mm512_unpacklo_ps(a[2], a[3]) + _mm512_unpackhi_ps(a[2], a[3]);
    const auto l = _mm512_castps_pd(low), h = _mm512_castps_pd(high);
    quarter[q] = _mm512_castpd_ps(_mm512_unpacklo_pd(l, h)) + _mm512_castpd_ps(_mm512_unpackhi_pd(l, h));
  }
  const __m512 front = _mm512_shuffle_f32x4(quarter[0], quarter[1], 0x88) +
                       _mm512_shuffle_f32x4(quarter[0], quarter[1], 0xdd),
               back = _mm512_shuffle_f32x4(quarter[2], quarter[3], 0x88) +
                      _mm512_shuffle_f32x4(quarter[2], quarter[3], 0xdd);
  return _mm512_shuffle_f32x4(front, back, 0x88) + _mm512_shuffle_f32x4(front, back, 0xdd);
}

// Four rows by four outputs, of which `rows` and `outs` are there: those that are not repeat the last.
struct PairTile {
  const LinearParams& p;
  long row, rows, out, outs;

  [[gnu::always_inline]] const uint16_t* x(int r) const {
    return static_cast<const uint16_t*>(p.x) + (row + (r < rows ? r : rows - 1)) * p.x_stride;
  }
  [[gnu::always_inline]] const uint16_t* weight(int o) const {
    return static_cast<const uint16_t*>(p.weight) + (out + (o < outs ? o : outs - 1)) * p.weight_stride;
  }

  void run() const {
    const uint16_t *xs[kPairRows], *ws[kPairOuts];
    for (int r = 0; r < kPairRows; ++r) xs[r] = x(r);
    for (int o = 0; o < kPairOuts; ++o) ws[o] = weight(o);
    __m512 sum[kPairRows * kPairOuts] = {};
    const long ahead = kPairOuts * p.weight_stride;  // the next tile's weights
    for (long k = 0; k < p.in; k += kPairDepth) {
      const __mmask32 there = p.in - k >= kPairDepth ? ~__mmask32{0} : (__mmask32{1} << (p.in - k)) - 1;
      __m512bh w[kPairOuts];
#pragma GCC unroll 4
      for (int o = 0; o < kPairOuts; ++o) {
        w[o] = reinterpret_cast<__m512bh>(_mm512_maskz_loadu_epi16(there, ws[o] + k));
        if (row == 0) read_ahead(reinterpret_cast<const char*>(ws[o] + ahead + k));
      }
#pragma GCC unroll 4
      for (int r = 0; r < kPairRows; ++r) {
        const auto a = reinterpret_cast<__m512bh>(_mm512_maskz_loadu_epi16(there, xs[r] + k));
#pragma GCC unroll 4
        for (int o = 0; o < kPairOuts; ++o) {
          sum[r * kPairOuts + o] = _mm512_dpbf16_ps(sum[r * kPairOuts + o], a, w[o]);
        }
      }
    }
    write(sums_of(sum));
  }

  void write(__m512 sums) const {
    float bias[kPairOuts] = {};
    for (int o = 0; p.bias != nullptr && o < outs; ++o) bias[o] = load_float(p.bias, out + o, p.bias_type);
    sums += _mm512_broadcast_f32x4(_mm_loadu_ps(bias));
    const bool halves = p.y_type == FloatType::kBF16;
    if (!halves && p.y_type != FloatType::kF32) return write_one_by_one(sums);
    const long size = halves ? 2 : 4;
    char values[kPairRows * kPairOuts * 4];
    if (halves) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(values), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(sums)));
    } else {
      _mm512_storeu_ps(values, sums);
    }
    char* to = static_cast<char*>(p.y) + (row * p.y_stride + out) * size;
    for (int r = 0; r < rows; ++r, to += p.y_stride * size) {
      const char* from = values + r * kPairOuts * size;
      if (outs == kPairOuts && halves) {
        __builtin_memcpy(to, from, kPairOuts * 2);
      } else if (outs == kPairOuts) {
        __builtin_memcpy(to, from, kPairOuts * 4);
      } else {
        __builtin_memcpy(to, from, static_cast<size_t>(outs * size));
      }
    }
  }
  void write_one_by_one(__m512 sums) const {
    float result[kPairRows * kPairOuts];
    _mm512_storeu_ps(result, sums);
    for (int r = 0; r < rows; ++r) {
      for (int o = 0; o < outs; ++o) {
        store_float(p.y, (row + r) * p.y_stride + out + o, p.y_type, result[r * kPairOuts + o]);
      }
    }
  }
};

// Outputs [out, out_end) of all rows.
inline void pair_products(const LinearParams& p, long out, long out_end) {
  for (; out < out_end; out += kPairOuts) {
    const long outs = out_end - out < kPairOuts ? out_end - out : kPairOuts;
    for (long row = 0; row < p.rows; row += kPairRows) {
      PairTile{p, row, p.rows - row < kPairRows ? p.rows - row : kPairRows, out, outs}.run();
    }
  }
}

}  // namespace
}  // namespace headrace::cpu

#endif
