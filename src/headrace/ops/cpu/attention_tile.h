// A tile of keys: addresses of its rows, and K and V packed for the GEMMs. For kernel sources only.
#pragma once
#include "headrace/ops/cpu/e4m3.h"
#include "headrace/ops/cpu/int8_row.h"
#include "headrace/ops/cpu/paged_attention.h"
#include "headrace/ops/cpu/read_ahead.h"

namespace headrace::cpu {
namespace {

static_assert(kKeyTile == 64, "a tile's keys are the bits of a uint64_t");

// Keys of a request that a row, or all rows of a block, see: [cached_from, cached_to) without [hole_begin, hole_end),
// and [new_from, new_to). Positions count cached keys from 0; new key j has position new_base + j.
struct Reach {
  long cached_from, cached_to, hole_begin, hole_end, new_from, new_to;
};

// Returns the bits of positions [begin, end) within [tile, tile + 64).
[[gnu::always_inline]] inline uint64_t range_bits(long begin, long end, long tile) {
  const long b = begin > tile ? begin - tile : 0, e = end < tile + kKeyTile ? end - tile : kKeyTile;
  if (b >= e) return 0;
  return (~uint64_t{0} >> (kKeyTile - (e - b))) << b;
}

[[gnu::always_inline]] inline uint64_t visible_bits(const Reach& r, long tile) {
  const uint64_t cached = range_bits(r.cached_from, r.cached_to, tile) & ~range_bits(r.hole_begin, r.hole_end, tile);
  return cached | range_bits(r.new_from, r.new_to, tile);
}

// Row addresses of a tile's keys, without the head's offset. Keys that no row of the block sees are absent and never
// read.
struct TileKeys {
  uint64_t present, fresh;  // fresh: in the batch's k_new and v_new
  const char *k[kKeyTile], *v[kKeyTile];
  const float *k_scale[kKeyTile], *v_scale[kKeyTile];  // of keys in an int8 pool
};

[[gnu::always_inline]] inline long size_of(FloatType type) {
  return type == FloatType::kF32 ? 4 : type == FloatType::kE4M3 || type == FloatType::kI8 ? 1 : 2;
}

[[gnu::always_inline]] inline const float* scale_at(const TokenScales& scales, long page, long slot) {
  return scales.data + page * scales.page_stride + slot * scales.slot_stride;
}

inline void locate(const PagedAttentionParams& p, const KeySpan& span, const Reach& reach, long tile, TileKeys& keys) {
  const long new_base = span.phys0 > span.ctx_len ? span.phys0 : span.ctx_len;
  keys.present = visible_bits(reach, tile);
  keys.fresh = 0;
  if (keys.present != ~uint64_t{0}) {
    for (int i = 0; i < kKeyTile; ++i) keys.k[i] = keys.v[i] = nullptr;
  }
  for (uint64_t left = keys.present; left != 0; left &= left - 1) {
    const int i = __builtin_ctzll(left);
    long position = tile + i;
    if (position >= new_base) {
      if (p.k_new.data != nullptr) {
        const long token = span.q_off + (position - new_base);
        keys.fresh |= uint64_t{1} << i;
        keys.k[i] = static_cast<const char*>(p.k_new.data) + token * p.k_new.token_stride * size_of(p.k_new.type);
        keys.v[i] = static_cast<const char*>(p.v_new.data) + token * p.v_new.token_stride * size_of(p.v_new.type);
        continue;
      }
      position = span.phys0 + (position - new_base);
    }
    const long at = position / p.page_size, slot = position - at * p.page_size;
    const long page = p.page_table[span.page_row * p.table_row_stride + at * p.table_page_stride];
    keys.k[i] =
        static_cast<const char*>(p.k.data) + (page * p.k.page_stride + slot * p.k.slot_stride) * size_of(p.k.type);
    keys.v[i] =
        static_cast<const char*>(p.v.data) + (page * p.v.page_stride + slot * p.v.slot_stride) * size_of(p.v.type);
    if (p.key_type != FloatType::kI8) continue;
    keys.k_scale[i] = scale_at(p.k.scales, page, slot);
    keys.v_scale[i] = scale_at(p.v.scales, page, slot);
  }
}

// K or V of one head of a tile.
struct TileRows {
  const char* const* row;  // [64], without the head's offset
  uint64_t present, fresh;
  long pool_offset, fresh_offset;  // of the head, in bytes
  FloatType pool_type, fresh_type, key_type;
  long dim;
  float scale;
  const float* const* token_scales;  // [64] of keys in an int8 pool, without the head's offset
  long token_scale_offset;           // of the head, in elements
};

[[gnu::always_inline]] inline TileRows k_rows(const PagedAttentionParams& p, const TileKeys& t, long kv_head) {
  return {t.k,
          t.present,
          t.fresh,
          kv_head * p.k.head_stride * size_of(p.k.type),
          kv_head * p.k_new.head_stride * size_of(p.k_new.type),
          p.k.type,
          p.k_new.type,
          p.key_type,
          p.head_dim,
          p.k_scale,
          t.k_scale,
          kv_head * p.k.scales.head_stride};
}

[[gnu::always_inline]] inline TileRows v_rows(const PagedAttentionParams& p, const TileKeys& t, long kv_head) {
  return {t.v,
          t.present,
          t.fresh,
          kv_head * p.v.head_stride * size_of(p.v.type),
          kv_head * p.v_new.head_stride * size_of(p.v_new.type),
          p.v.type,
          p.v_new.type,
          p.key_type,
          p.v_head_dim,
          p.v_scale,
          t.v_scale,
          kv_head * p.v.scales.head_stride};
}

// As load_key, for codes of int8. Writes the row's scale to scales[i].
[[gnu::always_inline]] inline void load_codes(const TileRows& rows, int i, float* to, float* scales) {
  if ((rows.fresh >> i & 1) == 0) {
    load_int8_row(to, reinterpret_cast<const int8_t*>(rows.row[i] + rows.pool_offset), rows.dim);
    scales[i] = rows.token_scales[i][rows.token_scale_offset];
    return;
  }
  load_row(to, rows.row[i] + rows.fresh_offset, 0, rows.dim, rows.fresh_type);
  scales[i] = quantize_int8_row(to, rows.dim);
}

// Loads one present row as float32, in units of the pool. New rows are rounded to the pool's dtype. scales[64]: written
// for codes of int8.
[[gnu::always_inline]] inline void load_key(const TileRows& rows, int i, float* to, float* scales) {
  if (rows.key_type == FloatType::kI8) return load_codes(rows, i, to, scales);
  if ((rows.fresh >> i & 1) == 0) return load_pool_row(to, rows.row[i] + rows.pool_offset, rows.dim, rows.pool_type);
  load_row(to, rows.row[i] + rows.fresh_offset, 0, rows.dim, rows.fresh_type);
  if (rows.fresh_type != rows.key_type) round_row(to, rows.dim, rows.key_type, rows.scale);
}

// Writes to[64, stride] as float32, in units of the pool; absent keys and columns past dim are zero.
inline void stage(const TileRows& rows, float* to, long stride, float* scales, ReadAhead& ahead) {
  for (int i = 0; i < kKeyTile; ++i, to += stride) {
    ahead.step();
    const bool present = (rows.present >> i & 1) != 0;
    if (present) load_key(rows, i, to, scales);
    for (long d = present ? rows.dim : 0; d < stride; ++d) to[d] = 0;
  }
}

// Transposes 32-bit words: to[d, 64] = from[64, d], for the d of one step.
#if defined(__AVX512F__)
constexpr int kTransposeStep = 16;
[[gnu::always_inline]] inline void transpose_step(const void* const* from, long byte, void* to, ReadAhead& ahead) {
  for (int block = 0; block < kKeyTile; block += 16) {
    for (int i = 0; i < 4; ++i) ahead.step();
    __m512i a[16], b[16];
    for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_si512(static_cast<const char*>(from[block + i]) + byte);
    for (int i = 0; i < 16; i += 2) {
      b[i] = _mm512_maskz_unpacklo_epi32(0xffff, a[i], a[i + 1]);
      b[i + 1] = _mm512_maskz_unpackhi_epi32(0xffff, a[i], a[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
      a[i] = _mm512_maskz_unpacklo_epi64(0xff, b[i], b[i + 2]);
      a[i + 1] = _mm512_maskz_unpackhi_epi64(0xff, b[i], b[i + 2]);
      a[i + 2] = _mm512_maskz_unpacklo_epi64(0xff, b[i + 1], b[i + 3]);
      a[i + 3] = _mm512_maskz_unpackhi_epi64(0xff, b[i + 1], b[i + 3]);
    }
    for (int i = 0; i < 4; ++i) {
      b[i] = _mm512_maskz_shuffle_i32x4(0xffff, a[i], a[i + 4], 0x88);
      b[i + 4] = _mm512_maskz_shuffle_i32x4(0xffff, a[i], a[i + 4], 0xdd);
      b[i + 8] = _mm512_maskz_shuffle_i32x4(0xffff, a[i + 8], a[i + 12], 0x88);
      b[i + 12] = _mm512_maskz_shuffle_i32x4(0xffff, a[i + 8], a[i + 12], 0xdd);
    }
    auto* const out = static_cast<uint32_t*>(to) + block;
    for (int i = 0; i < 8; ++i) {
      _mm512_storeu_si512(out + i * kKeyTile, _mm512_maskz_shuffle_i32x4(0xffff, b[i], b[i + 8], 0x88));
      _mm512_storeu_si512(out + (i + 8) * kKeyTile, _mm512_maskz_shuffle_i32x4(0xffff, b[i], b[i + 8], 0xdd));
    }
  }
}
#else
constexpr int kTransposeStep = 4;
[[gnu::always_inline]] inline void transpose_step(const void* const* from, long byte, void* to, ReadAhead& ahead) {
  ahead.step();
  typedef uint32_t Vec4 __attribute__((vector_size(16), aligned(4), may_alias));
  for (int block = 0; block < kKeyTile; block += 4) {
    Vec4 a[4];
    for (int i = 0; i < 4; ++i) a[i] = *reinterpret_cast<const Vec4*>(static_cast<const char*>(from[block + i]) + byte);
    const Vec4 low01 = __builtin_shufflevector(a[0], a[1], 0, 4, 1, 5);
    const Vec4 high01 = __builtin_shufflevector(a[0], a[1], 2, 6, 3, 7);
    const Vec4 low23 = __builtin_shufflevector(a[2], a[3], 0, 4, 1, 5);
    const Vec4 high23 = __builtin_shufflevector(a[2], a[3], 2, 6, 3, 7);
    auto* const out = static_cast<uint32_t*>(to) + block;
    *reinterpret_cast<Vec4*>(out) = __builtin_shufflevector(low01, low23, 0, 1, 4, 5);
    *reinterpret_cast<Vec4*>(out + kKeyTile) = __builtin_shufflevector(low01, low23, 2, 3, 6, 7);
    *reinterpret_cast<Vec4*>(out + 2 * kKeyTile) = __builtin_shufflevector(high01, high23, 0, 1, 4, 5);
    *reinterpret_cast<Vec4*>(out + 3 * kKeyTile) = __builtin_shufflevector(high01, high23, 2, 3, 6, 7);
  }
}
#endif

// Transposes 64 rows to to[words, 64]. `words` counts 32-bit words and is a multiple of kAttentionPad / 2.
inline void transpose(const void* const* from, long words, void* to, ReadAhead& ahead) {
  for (long w = 0; w < words; w += kTransposeStep) {
    transpose_step(from, w * 4, static_cast<uint32_t*>(to) + w * kKeyTile, ahead);
  }
}

#ifdef __AVX512BF16__
// Points row[i] at 64 rows of `stride` bf16 each: the rows themselves where possible, else copies in `staged`.
inline void gather_bf16(const TileRows& rows, long stride, uint16_t* staged, float* row_scratch, float* scales,
                        const void** row) {
  for (int i = 0; i < kKeyTile; ++i, staged += stride) {
    const bool present = (rows.present >> i & 1) != 0, fresh = (rows.fresh >> i & 1) != 0;
    const FloatType type = fresh ? rows.fresh_type : rows.pool_type;
    if (present && type == FloatType::kBF16 && rows.key_type == FloatType::kBF16 && rows.dim == stride) {
      row[i] = rows.row[i] + (fresh ? rows.fresh_offset : rows.pool_offset);
      continue;
    }
    row[i] = staged;
    const long dim = present ? rows.dim : 0;
    if (present) {
      load_key(rows, i, row_scratch, scales);
      store_row(staged, 0, row_scratch, dim, FloatType::kBF16);
    }
    for (long d = dim; d < stride; ++d) staged[d] = 0;
  }
}

// to[32, dim]: interleaves keys 2 i and 2 i + 1. Rows have `dim` bf16, a multiple of 32.
inline void pair_keys(const void* const* row, long dim, uint32_t* to, ReadAhead& ahead) {
  for (int i = 0; i < kKeyTile; i += 2, to += dim) {
    for (int j = 0; j < 2; ++j) ahead.step();
    for (long d = 0; d < dim; d += 16) {
      const auto* const even = reinterpret_cast<const __m256i*>(static_cast<const uint16_t*>(row[i]) + d);
      const auto* const odd = reinterpret_cast<const __m256i*>(static_cast<const uint16_t*>(row[i + 1]) + d);
      const __m512i low = _mm512_maskz_cvtepu16_epi32(0xffff, _mm256_loadu_si256(even));
      const __m512i high = _mm512_maskz_cvtepu16_epi32(0xffff, _mm256_loadu_si256(odd));
      _mm512_storeu_si512(to + d, low | _mm512_maskz_slli_epi32(0xffff, high, 16));
    }
  }
}
#endif

// K and V of one head; row i begins at k[i] + k_offset.
struct TileInPlace {
  const char *const *k, *const *v;
  long k_offset, v_offset;  // in bytes
};

#ifdef __AVX512BF16__
using Query = uint16_t;  // bf16
#else
using Query = float;
#endif

// Query rows of a tile in place, with their online softmax state.
struct RowsInPlace {
  long count;
  const Query* q;  // [rows, d]
  float *out, *largest, *sum;
  long d, dv;  // multiples of 32
};

}  // namespace
}  // namespace headrace::cpu
