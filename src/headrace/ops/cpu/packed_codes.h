// Vectors of weight codes: four codes of each of kLanes rows. For kernel sources only: internal linkage in every
// variant.
#pragma once
#include "headrace/ops/cpu/packed_activations.h"

namespace headrace::cpu {
namespace {

constexpr int kTileRows = static_cast<int>(kPackedRows);
constexpr int kParts = kTileRows / kLanes;        // vectors that hold one word of all rows of a tile
constexpr int kWords = kGroup / 4;                // words of a row in a group
constexpr int kWordBytes = 4 * kTileRows;         // one word of all rows
constexpr int kPanelBytes = kWords * kWordBytes;  // codes of a group, one to a byte

typedef uint8_t Codes __attribute__((vector_size(4 * kLanes)));
typedef uint8_t CodesInMemory __attribute__((vector_size(4 * kLanes), aligned(1), may_alias));
typedef uint16_t CodePairs __attribute__((vector_size(4 * kLanes)));

[[gnu::always_inline]] inline Codes load_codes(const unsigned char* from) {
  return *reinterpret_cast<const CodesInMemory*>(from);
}

// `mask` in every byte.
[[gnu::always_inline]] inline Codes all_bytes(uint8_t mask) { return mask - Codes{}; }

// Moves every byte's bits up by `by`, or down if that is negative. Bits that cross into another byte are masked by the
// caller.
[[gnu::always_inline]] inline Codes moved(Codes codes, int by) {
  const auto pairs = reinterpret_cast<CodePairs>(codes);
  return reinterpret_cast<Codes>(by < 0 ? pairs >> -by : pairs << by);
}

// Word `word` of part `part` of a packed group, one code a byte: from 0 on, and signed in Q8_0. Callers unroll their
// loops over words, so that shifts and masks are constants.
template <BlockFormat kFormat>
[[gnu::always_inline]] inline Codes codes_at(const unsigned char* group, int word, int part) {
  constexpr PackedLayout kLayout = packed_layout(kFormat);
  const unsigned char* const from = group + 4 * kLanes * part;
  if constexpr (kLayout.code_bits == 8) return load_codes(from + kWordBytes * word);
  Codes codes = load_codes(from + kWordBytes * (word % 4));
  codes = (word < 4 ? codes : moved(codes, -4)) & 15;
  if constexpr (kLayout.code_bits == 5) {
    const Codes bit = load_codes(from + kLayout.high) & all_bytes(static_cast<uint8_t>(1 << word));
    codes |= moved(bit, 4 - word);
  }
  if constexpr (kLayout.code_bits == 6) {
    const int at = word % 4 * 2;
    const unsigned char* const high = from + kLayout.high + kWordBytes * (word / 4);
    codes |= moved(load_codes(high) & all_bytes(static_cast<uint8_t>(3 << at)), 4 - at);
  }
  return codes;
}

// Unpacks a group to one code a byte, words in order.
template <BlockFormat kFormat>
[[gnu::always_inline]] inline void unpack_codes(const unsigned char* group, unsigned char* panel) {
#pragma GCC unroll 8
  for (int word = 0; word < kWords; ++word) {
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part) {
      *reinterpret_cast<CodesInMemory*>(panel + kWordBytes * word + 4 * kLanes * part) =
          codes_at<kFormat>(group, word, part);
    }
  }
}

// A number of each row, as float16.
[[gnu::always_inline]] inline Vec load_scales(const unsigned char* scales, int part) {
  return load_halves(reinterpret_cast<const uint16_t*>(scales) + kLanes * part, FloatType::kF16);
}

// A number of each row in one byte; signed in Q6_K. (GCC 12 converts vectors of bytes one by one.)
template <BlockFormat kFormat>
[[gnu::always_inline]] inline IntVec load_steps(const unsigned char* steps, int part) {
  constexpr bool kIsSigned = kFormat == BlockFormat::kQ6_K;
  const unsigned char* const from = steps + kLanes * part;
#if defined(__AVX512F__)
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return reinterpret_cast<IntVec>(kIsSigned ? _mm512_maskz_cvtepi8_epi32(0xffff, bytes)
                                            : _mm512_maskz_cvtepu8_epi32(0xffff, bytes));
#elif defined(__AVX2__)
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return reinterpret_cast<IntVec>(kIsSigned ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes));
#else
  IntVec result;
  for (int i = 0; i < kLanes; ++i) result[i] = kIsSigned ? static_cast<int8_t>(from[i]) : from[i];
  return result;
#endif
}

// Subtracting zero is folded away; adding it would not be.
[[gnu::always_inline]] inline Vec broadcast(float value) { return value - Vec{}; }

[[gnu::always_inline]] inline Vec to_float(IntVec v) { return __builtin_convertvector(v, Vec); }

}  // namespace
}  // namespace headrace::cpu
