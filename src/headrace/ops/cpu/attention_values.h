// Infinities and NaNs in V of a packed tile. A row gives an invisible key probability 0, and 0 times infinity is NaN.
// If rows see different keys of a tile, these elements are therefore removed before the GEMM and added afterwards to
// the rows that see them. For kernel sources only: internal linkage in every variant.
#pragma once
#include "headrace/ops/cpu/paged_attention.h"

namespace headrace::cpu {
namespace {

constexpr uint32_t kExponentBits = 0x7f800000;  // all set only in infinities and NaNs

// Returns the float32 bits of element d of a key. V is packed as float rows, or as bf16 pairs with even keys in the low
// half.
[[gnu::always_inline]] inline uint32_t value_bits(const float* v, long dim, int key, long d) {
  uint32_t bits;
  __builtin_memcpy(&bits, v + key * dim + d, sizeof(bits));
  return bits;
}
[[gnu::always_inline]] inline uint32_t value_bits(const uint32_t* v, long dim, int key, long d) {
  uint32_t pair;
  __builtin_memcpy(&pair, v + key / 2 * dim + d, sizeof(pair));
  return key % 2 == 0 ? pair << 16 : pair & 0xffff0000;
}

inline void clear_value(float* v, long dim, int key, long d) { v[key * dim + d] = 0; }
inline void clear_value(uint32_t* v, long dim, int key, long d) {
  uint32_t pair;
  __builtin_memcpy(&pair, v + key / 2 * dim + d, sizeof(pair));
  pair &= key % 2 == 0 ? 0xffff0000 : 0xffff;
  __builtin_memcpy(v + key / 2 * dim + d, &pair, sizeof(pair));
}

inline float probability_at(const float* probabilities, long at) { return probabilities[at]; }
inline float probability_at(const uint16_t* probabilities, long at) {
  return load_float(probabilities, at, FloatType::kBF16);
}

// Returns the set of keys of a packed tile that hold an infinity or a NaN.
template <class Packed>
inline uint64_t nonfinite_keys(const Packed* v, long dim) {
  uint64_t keys = 0;
  for (int key = 0; key < kKeyTile; ++key) {
    uint32_t found = 0;
    for (long d = 0; d < dim; ++d) found |= (value_bits(v, dim, key, d) & kExponentBits) == kExponentBits ? 1 : 0;
    keys |= uint64_t{found} << key;
  }
  return keys;
}

// Moves these keys' infinities and NaNs to apart[64, dim], and sets them to zero in `v`. Other elements of `apart` rows
// are 0.
template <class Packed>
inline void move_nonfinite(Packed* v, long dim, uint64_t keys, float* apart) {
  for (; keys != 0; keys &= keys - 1) {
    const int key = __builtin_ctzll(keys);
    for (long d = 0; d < dim; ++d) {
      uint32_t bits = value_bits(v, dim, key, d);
      if ((bits & kExponentBits) == kExponentBits) {
        clear_value(v, dim, key, d);
      } else {
        bits = 0;
      }
      __builtin_memcpy(apart + key * dim + d, &bits, sizeof(bits));
    }
  }
}

// out[dim] += probability * moved elements, for the keys that a row sees.
template <class Probability>
inline void add_moved(const float* apart, long dim, uint64_t keys, const Probability* probabilities, float* out) {
  for (; keys != 0; keys &= keys - 1) {
    const int key = __builtin_ctzll(keys);
    const float probability = probability_at(probabilities, key);
    for (long d = 0; d < dim; ++d) {
      if (apart[key * dim + d] != 0) out[d] += probability * apart[key * dim + d];
    }
  }
}

}  // namespace
}  // namespace headrace::cpu
