// Exact sums of products of codes over a group of 32 columns, for the rows of a tile in the lanes. For kernel sources
// only: internal linkage in every variant.
#pragma once
#include "headrace/ops/cpu/packed_codes.h"

namespace headrace::cpu {
namespace {

[[gnu::always_inline]] inline Vec fma(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return reinterpret_cast<Vec>(
      _mm512_fmadd_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(c)));
#elif defined(__FMA__)
  return reinterpret_cast<Vec>(
      _mm256_fmadd_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b), reinterpret_cast<__m256>(c)));
#else
  for (int i = 0; i < kLanes; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return c;
#endif
}

[[gnu::always_inline]] inline int32_t word_of(const int8_t* codes, int word) {
  int32_t bits;
  __builtin_memcpy(&bits, codes + 4 * word, sizeof bits);
  return bits;
}

// Sums are added in the order of the source: GCC would add up many products as a tree, in more registers than there
// are.
template <class V>
[[gnu::always_inline]] inline void keep_order(V& sum) {
#if defined(__AVX2__)
  asm("" : "+v"(sum));
#endif
}

// One group of a tile. Codes come from the packed group, or unpacked from a panel.
template <BlockFormat kFormat, bool kPanel>
struct GroupCodes {
  static constexpr PackedLayout kLayout = packed_layout(kFormat);
  const unsigned char* codes;  // packed, or the panel's
  const unsigned char* steps;  // of blocks of 256 columns

  [[gnu::always_inline]] Codes at(int word, int part) const {
    if constexpr (kPanel) return load_codes(codes + kWordBytes * word + 4 * kLanes * part);
    return codes_at<kFormat>(codes, word, part);
  }
};

#if defined(__AVX512VNNI__)

// Adds to each lane the products of four unsigned codes with four of x. No intermediate saturates.
[[gnu::always_inline]] inline IntVec add_products(IntVec sum, Codes codes, int32_t x) {
  return reinterpret_cast<IntVec>(
      _mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sum), reinterpret_cast<__m512i>(codes), _mm512_set1_epi32(x)));
}

// sums = for each row the integer sum over the group of step (code - offset) x. Every one is below 2^24: exact.
template <BlockFormat kFormat, bool kPanel, int kRows>
[[gnu::always_inline]] inline void group_sums(const GroupCodes<kFormat, kPanel>& group, const XGroup* const (&x)[kRows],
                                              Vec (&sums)[kRows][kParts]) {
  constexpr PackedLayout kLayout = packed_layout(kFormat);
  constexpr bool kIsQ8 = kLayout.code_bits == 8, kIsQ6 = kLayout.code_bits == 6;
  constexpr int kOffset = kIsQ8 ? 128 : kLayout.code_offset;  // signed codes become unsigned
  IntVec sum[kRows][2];                                       // Q6_K: of each half
  for (int r = 0; r < kRows; ++r) {
    sum[r][0] = (IntVec{} + (kIsQ6 ? x[r]->half_sums[0] : x[r]->sum)) * -kOffset;
    sum[r][1] = (IntVec{} + x[r]->half_sums[1]) * -kOffset;
  }
#pragma GCC unroll 8
  for (int word = 0; word < kWords; ++word) {
    Codes codes = group.at(word, 0);
    if constexpr (kIsQ8) codes ^= 0x80;
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      IntVec& to = sum[r][kIsQ6 && word >= kWords / 2 ? 1 : 0];
      to = add_products(to, codes, word_of(x[r]->codes, word));
    }
  }
  for (int r = 0; r < kRows; ++r) {
    sums[r][0] = to_float(sum[r][0]);
    if constexpr (kLayout.steps != 0) sums[r][0] *= to_float(load_steps<kFormat>(group.steps, 0));
    if constexpr (kIsQ6) {
      const Vec last = to_float(load_steps<kFormat>(group.steps + kTileRows, 0));
      sums[r][0] = fma(to_float(sum[r][1]), last, sums[r][0]);
    }
  }
}

#else

typedef int16_t ShortVec __attribute__((vector_size(4 * kLanes)));

#if defined(__AVX2__)
// Products of codes with x, the two of neighbouring columns added, and those sums with factors likewise.
#if defined(__AVX512F__)
typedef __m512i AllBits;
[[gnu::always_inline]] inline AllBits broadcast_word(int32_t word) { return _mm512_set1_epi32(word); }
[[gnu::always_inline]] inline AllBits pair_products(AllBits codes, AllBits x) { return _mm512_maddubs_epi16(codes, x); }
[[gnu::always_inline]] inline AllBits pair_sums(AllBits a, AllBits b) { return _mm512_madd_epi16(a, b); }
[[gnu::always_inline]] inline AllBits magnitudes(AllBits codes) { return _mm512_abs_epi8(codes); }
[[gnu::always_inline]] inline AllBits with_signs(AllBits x, AllBits codes) {
  return _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(codes), _mm512_setzero_si512(), x);
}
#else
typedef __m256i AllBits;
[[gnu::always_inline]] inline AllBits broadcast_word(int32_t word) { return _mm256_set1_epi32(word); }
[[gnu::always_inline]] inline AllBits pair_products(AllBits codes, AllBits x) { return _mm256_maddubs_epi16(codes, x); }
[[gnu::always_inline]] inline AllBits pair_sums(AllBits a, AllBits b) { return _mm256_madd_epi16(a, b); }
[[gnu::always_inline]] inline AllBits magnitudes(AllBits codes) { return _mm256_abs_epi8(codes); }
[[gnu::always_inline]] inline AllBits with_signs(AllBits x, AllBits codes) { return _mm256_sign_epi8(x, codes); }
#endif

// Sums of products in 16 bits, two to a lane. A product of two columns is at most 2 127 times the largest code, so 16
// bits hold the sum of kRun words: 8 of 4 bits (30480), 4 of 5 (31496), 2 of 6 (32004), 1 of 8 (32512, |code| times
// +-x, as unsigned codes of 8 bits would saturate).
template <BlockFormat kFormat>
struct WordSums {
  static constexpr int kBits = packed_layout(kFormat).code_bits;
  static constexpr int kRun = kBits == 4 ? 8 : kBits == 5 ? 4 : kBits == 6 ? 2 : 1;
  ShortVec sum = {};

  [[gnu::always_inline]] void add(Codes codes, int32_t x) {
    auto w = reinterpret_cast<AllBits>(codes), a = broadcast_word(x);
    if constexpr (kBits == 8) {
      a = with_signs(a, w);
      w = magnitudes(w);
    }
    sum += reinterpret_cast<ShortVec>(pair_products(w, a));
    keep_order(sum);
  }
  // factors: one for each 16-bit sum
  [[gnu::always_inline]] IntVec times(IntVec factors) const {
    return reinterpret_cast<IntVec>(pair_sums(reinterpret_cast<AllBits>(sum), reinterpret_cast<AllBits>(factors)));
  }
};
#else
// As above with one column to 16 bits, in vectors of 16 bytes.
template <BlockFormat kFormat>
struct WordSums {
  static constexpr int kBits = packed_layout(kFormat).code_bits;
  static constexpr int kRun = kBits < 6 ? 8 : kBits == 6 ? 4 : 2;  // 8 31 127, 4 63 127 and 2 128 127 fit 16 bits
  ShortVec sum[2] = {};                                            // columns of the first two rows, and of the others

  [[gnu::always_inline]] void add(Codes codes, int32_t x) {
    typedef uint8_t Half __attribute__((vector_size(8)));
    typedef int8_t SignedHalf __attribute__((vector_size(8)));
    const auto column = [x](int i) { return static_cast<int16_t>(static_cast<int8_t>(x >> 8 * i)); };
    const ShortVec a = {column(0), column(1), column(2), column(3), column(0), column(1), column(2), column(3)};
    const Half halves[2] = {__builtin_shufflevector(codes, codes, 0, 1, 2, 3, 4, 5, 6, 7),
                            __builtin_shufflevector(codes, codes, 8, 9, 10, 11, 12, 13, 14, 15)};
    for (int half = 0; half < 2; ++half) {
      if constexpr (kBits == 8) {
        sum[half] += __builtin_convertvector(reinterpret_cast<SignedHalf>(halves[half]), ShortVec) * a;
      } else {
        sum[half] += __builtin_convertvector(halves[half], ShortVec) * a;
      }
    }
  }
  // factors: the two 16-bit halves of a lane are equal
  [[gnu::always_inline]] IntVec times(IntVec factors) const {
    IntVec pairs[2];
    for (int half = 0; half < 2; ++half) {
      const auto bits = reinterpret_cast<BitsVec>(sum[half]);
      pairs[half] = (reinterpret_cast<IntVec>(bits << 16) >> 16) + (reinterpret_cast<IntVec>(bits) >> 16);
    }
    return (__builtin_shufflevector(pairs[0], pairs[1], 0, 2, 4, 6) +
            __builtin_shufflevector(pairs[0], pairs[1], 1, 3, 5, 7)) *
           (reinterpret_cast<IntVec>(reinterpret_cast<BitsVec>(factors) << 16) >> 16);
  }
};
#endif

// Both 16-bit halves of each lane.
[[gnu::always_inline]] inline IntVec both_halves(IntVec low, IntVec high) {
  return reinterpret_cast<IntVec>((reinterpret_cast<BitsVec>(low) & 0xffffu) | reinterpret_cast<BitsVec>(high) << 16);
}

// Sums of x over each half of a group times that half's steps.
[[gnu::always_inline]] inline IntVec of_halves(const IntVec (&steps)[2], const int16_t (&half_sums)[2]) {
#if defined(__AVX2__)
  int32_t both;
  __builtin_memcpy(&both, half_sums, sizeof both);
  return reinterpret_cast<IntVec>(
      pair_sums(reinterpret_cast<AllBits>(both_halves(steps[0], steps[1])), broadcast_word(both)));
#else
  return steps[0] * half_sums[0] + steps[1] * half_sums[1];
#endif
}

// sums = for each row the integer sum over the group of step (code - offset) x. Every one is below 2^24: exact.
template <BlockFormat kFormat, bool kPanel, int kRows>
[[gnu::always_inline]] inline void group_sums(const GroupCodes<kFormat, kPanel>& group, const XGroup* const (&x)[kRows],
                                              Vec (&sums)[kRows][kParts]) {
  constexpr PackedLayout kLayout = packed_layout(kFormat);
  constexpr bool kIsQ6 = kLayout.code_bits == 6;
  constexpr int kRun = WordSums<kFormat>::kRun;
  IntVec steps[kParts][2], sum[kRows][kParts];  // Q6_K: steps of each half
  for (int part = 0; part < kParts; ++part) {
    steps[part][0] = IntVec{} + 1;
    if constexpr (kLayout.steps != 0) steps[part][0] = load_steps<kFormat>(group.steps, part);
    steps[part][1] = kIsQ6 ? load_steps<kFormat>(group.steps + kTileRows, part) : steps[part][0];
    for (int r = 0; r < kRows; ++r) {
      sum[r][part] = IntVec{};
      if constexpr (kLayout.steps == 0 && kLayout.code_offset != 0)
        sum[r][part] = (IntVec{} + x[r]->sum) * -kLayout.code_offset;
      if constexpr (kIsQ6) sum[r][part] = of_halves(steps[part], x[r]->half_sums) * -kLayout.code_offset;
    }
  }
#pragma GCC unroll 8
  for (int first = 0; first < kWords; first += kRun) {
    WordSums<kFormat> words[kRows][kParts];
#pragma GCC unroll 8
    for (int word = first; word < first + kRun; ++word) {
#pragma GCC unroll 4
      for (int part = 0; part < kParts; ++part) {
        const Codes codes = group.at(word, part);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) words[r][part].add(codes, word_of(x[r]->codes, word));
      }
    }
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part) {
      const IntVec step = steps[part][first / (kWords / 2)];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        sum[r][part] += words[r][part].times(both_halves(step, step));
        keep_order(sum[r][part]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int part = 0; part < kParts; ++part) sums[r][part] = to_float(sum[r][part]);
  }
}

#endif

}  // namespace
}  // namespace headrace::cpu
