// Small GEMMs of attention: c[rows, n] (+)= a[rows, depth] b[depth, n], in float32 or from bf16 pairs; M = rows, N = n,
// K = depth. Every element sums over depth in ascending order for any number of rows, so results do not depend on the
// blocking. For kernel sources only: internal linkage in every variant.
#pragma once
#include "headrace/ops/cpu/read_ahead.h"
#include "headrace/ops/cpu/simd.h"
#ifdef __AMX_BF16__
#include "headrace/ops/cpu/amx_tile.h"
#endif

namespace headrace::cpu {
namespace {

// GEMM shape. c and b have n columns, a multiple of kAttentionPad; strides count elements.
struct Product {
  long rows, depth, n;
  long a_stride, b_stride, c_stride;
};

enum class Into { kOverwrite, kAdd };

constexpr int kRowsInRegisters = 6;
#if defined(__AVX512F__)
constexpr int kVecsInRegisters = 4;
#else
constexpr int kVecsInRegisters = 2;
#endif

template <int kRows, int kVecs, Into kInto>
[[gnu::always_inline]] inline void multiply_block(const float* a, const float* b, float* c, const Product& s,
                                                  ReadAhead& ahead) {
  Vec sum[kRows][kVecs];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) sum[r][v] = kInto == Into::kAdd ? load(c + r * s.c_stride + v * kLanes) : Vec{};
  }
  ReadAhead next = ahead;
  for (long k = 0; k < s.depth; ++k) {
    if (k % 2 == 0) next.step();
    Vec right[kVecs];
    for (int v = 0; v < kVecs; ++v) right[v] = load(b + k * s.b_stride + v * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const float left = a[r * s.a_stride + k];
      for (int v = 0; v < kVecs; ++v) sum[r][v] += left * right[v];
    }
  }
  ahead = next;
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) store(c + r * s.c_stride + v * kLanes, sum[r][v]);
  }
}

#ifdef __AVX512BF16__
// a holds bf16, b pairs of bf16 [depth / 2, n] with the even depth index in the low half.
template <int kRows, int kVecs, Into kInto>
[[gnu::always_inline]] inline void multiply_block(const uint16_t* a, const uint32_t* b, float* c, const Product& s,
                                                  ReadAhead& ahead) {
  __m512 sum[kRows][kVecs];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) {
      sum[r][v] = kInto == Into::kAdd ? reinterpret_cast<__m512>(load(c + r * s.c_stride + v * kLanes)) : __m512{};
    }
  }
  ReadAhead next = ahead;
  for (long k = 0; k < s.depth / 2; ++k) {
    next.step();
    __m512bh right[kVecs];
    for (int v = 0; v < kVecs; ++v) {
      right[v] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(b + k * s.b_stride + v * kLanes));
    }
    for (int r = 0; r < kRows; ++r) {
      int pair;
      __builtin_memcpy(&pair, a + r * s.a_stride + 2 * k, sizeof(pair));
      const auto left = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
      for (int v = 0; v < kVecs; ++v) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], left, right[v]);
    }
  }
  ahead = next;
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) store(c + r * s.c_stride + v * kLanes, reinterpret_cast<Vec>(sum[r][v]));
  }
}
#endif

template <int kVecs, Into kInto, class A, class B>
inline void multiply_columns(const A* a, const B* b, float* c, const Product& s, ReadAhead& ahead) {
  long r = 0;
  for (; r + kRowsInRegisters <= s.rows; r += kRowsInRegisters) {
    multiply_block<kRowsInRegisters, kVecs, kInto>(a + r * s.a_stride, b, c + r * s.c_stride, s, ahead);
  }
  a += r * s.a_stride;
  c += r * s.c_stride;
  switch (s.rows - r) {
    case 1: return multiply_block<1, kVecs, kInto>(a, b, c, s, ahead);
    case 2: return multiply_block<2, kVecs, kInto>(a, b, c, s, ahead);
    case 3: return multiply_block<3, kVecs, kInto>(a, b, c, s, ahead);
    case 4: return multiply_block<4, kVecs, kInto>(a, b, c, s, ahead);
    case 5: return multiply_block<5, kVecs, kInto>(a, b, c, s, ahead);
    default: return;
  }
}

template <Into kInto, class A, class B>
inline void multiply(const A* a, const B* b, float* c, const Product& s, ReadAhead& ahead) {
  long n = 0;
  for (; n + kVecsInRegisters * kLanes <= s.n; n += kVecsInRegisters * kLanes) {
    multiply_columns<kVecsInRegisters, kInto>(a, b + n, c + n, s, ahead);
  }
  for (; n < s.n; n += 2 * kLanes) multiply_columns<2, kInto>(a, b + n, c + n, s, ahead);
}

#ifdef __AMX_BF16__
// Computes 32 columns of c for 16 or 32 rows. Reads and writes c up to a multiple of 16 rows. Tiles 0 to 3 hold c, 4
// and 5 a, 6 and 7 b.
template <int kTileRows, Into kInto>
[[gnu::always_inline]] inline void multiply_tile_rows(const uint16_t* a, const uint32_t* b, float* c, const Product& s,
                                                      ReadAhead& ahead) {
  const long a_bytes = s.a_stride * 2, b_bytes = s.b_stride * 4, c_bytes = s.c_stride * 4;
  if (kInto == Into::kAdd) {
    load_tile<0>(c, c_bytes);
    load_tile<1>(c + 16, c_bytes);
    if (kTileRows == 2) load_tile<2>(c + 16 * s.c_stride, c_bytes);
    if (kTileRows == 2) load_tile<3>(c + 16 * s.c_stride + 16, c_bytes);
  } else {
    zero_tile<0>();
    zero_tile<1>();
    if (kTileRows == 2) zero_tile<2>();
    if (kTileRows == 2) zero_tile<3>();
  }
  for (long k = 0; k < s.depth; k += 32, a += 32, b += 16 * s.b_stride) {
    for (int i = 0; i < 8; ++i) ahead.step();
    load_tile<6>(b, b_bytes);
    load_tile<7>(b + 16, b_bytes);
    load_tile<4>(a, a_bytes);
    multiply_tiles<0, 4, 6>();
    multiply_tiles<1, 4, 7>();
    if (kTileRows == 2) {
      load_tile<5>(a + 16 * s.a_stride, a_bytes);
      multiply_tiles<2, 5, 6>();
      multiply_tiles<3, 5, 7>();
    }
  }
  store_tile<0>(c, c_bytes);
  store_tile<1>(c + 16, c_bytes);
  if (kTileRows == 2) store_tile<2>(c + 16 * s.c_stride, c_bytes);
  if (kTileRows == 2) store_tile<3>(c + 16 * s.c_stride + 16, c_bytes);
}

template <Into kInto>
inline void multiply(const uint16_t* a, const uint32_t* b, float* c, const Product& s, ReadAhead& ahead) {
  for (long n = 0; n < s.n; n += 32) {
    for (long r = 0; r < s.rows; r += 32) {
      if (s.rows - r > 16) {
        multiply_tile_rows<2, kInto>(a + r * s.a_stride, b + n, c + r * s.c_stride + n, s, ahead);
      } else {
        multiply_tile_rows<1, kInto>(a + r * s.a_stride, b + n, c + r * s.c_stride + n, s, ahead);
      }
    }
  }
}
#else
inline void configure_tiles() {}
inline void release_tiles() {}
#endif

}  // namespace
}  // namespace headrace::cpu
