// GEMM y = x W^T for small M by bf16 dot products (VDPBF16PS). Weights are read once from their original layout, and no
// operand is widened. A matrix library packs its weights first, which takes most of the time for small M. For kernel
// sources only: internal linkage in every variant.
#pragma once
#include "headrace/ops/cpu/linear.h"
#include "headrace/ops/cpu/read_ahead.h"
#include "headrace/ops/cpu/simd.h"

#ifdef __AVX512BF16__

namespace headrace::cpu {
namespace {

constexpr int kPairRows = 4, kPairOuts = 4;  // per tile: sixteen accumulators
constexpr long kPairDepth = 32;              // elements per vector

// Reduces sixteen vectors to one: lane i is the sum of v[i]. (GCC 12 warns about its own intrinsics for these
// shuffles.)
[[gnu::always_inline]] inline Vec sums_of(const Vec (&v)[16]) {
  Vec quarter[4];  // lane 4 l + i: partial sum of v[4 q + i] in its 128-bit lane l
#pragma GCC unroll 4
  for (int q = 0; q < 4; ++q) {
    const Vec &a = v[4 * q], &b = v[4 * q + 1], &c = v[4 * q + 2], &d = v[4 * q + 3];
    const Vec low = __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29) +
                    __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
    const Vec high = __builtin_shufflevector(c, d, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29) +
                     __builtin_shufflevector(c, d, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
    quarter[q] = __builtin_shufflevector(low, high, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
                 __builtin_shufflevector(low, high, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  }
  const auto joined = [](const Vec& a, const Vec& b) {
    return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
           __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
  };
  return joined(joined(quarter[0], quarter[1]), joined(quarter[2], quarter[3]));
}

// Tile of four rows by four outputs. `rows` and `outs` are the valid ones; the others repeat the last.
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
    Vec sum[kPairRows * kPairOuts] = {};
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
          Vec& s = sum[r * kPairOuts + o];
          s = reinterpret_cast<Vec>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(s), a, w[o]));
        }
      }
    }
    write(sums_of(sum));
  }

  void write(Vec sums) const {
    if (p.bias != nullptr) {
      float bias[kPairRows * kPairOuts] = {};
      for (int i = 0; i < kPairRows * kPairOuts; ++i) {
        if (const int o = i % kPairOuts; o < outs) bias[i] = load_float(p.bias, out + o, p.bias_type);
      }
      sums += load(bias);
    }
    const bool halves = p.y_type != FloatType::kF32;
    const long size = halves ? 2 : 4;
    alignas(64) char values[kPairRows * kPairOuts * 4];
    store_row(values, 0, reinterpret_cast<const float*>(&sums), kPairRows * kPairOuts, p.y_type);
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
};

// Computes outputs [out, out_end) of all rows.
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
