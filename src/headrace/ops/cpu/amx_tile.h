// AMX tiles, and a bfloat16 GEMM on them. For kernel sources of the amx variant only.
//
// Uses inline assembly: GCC 12's intrinsics declare too small an operand for the tile configuration and no memory
// clobber for a load, and drop stores.
#pragma once
#include <stdint.h>

namespace headrace::cpu {
namespace {

// Shapes of the eight tiles.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Configures the tiles of this thread, until release_tiles().
inline void configure_tiles(const TileShapes& config = {}) { asm volatile("ldtilecfg %0" : : "m"(config) : "memory"); }

inline void release_tiles() { asm volatile("tilerelease" : : : "memory"); }

template <int kTile>
[[gnu::always_inline]] inline void load_tile(const void* from, long stride_bytes) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride_bytes), "i"(kTile) : "memory");
}
template <int kTile>
[[gnu::always_inline]] inline void store_tile(void* to, long stride_bytes) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride_bytes), "i"(kTile) : "memory");
}
template <int kTile>
[[gnu::always_inline]] inline void zero_tile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
// kC += kA kB
template <int kC, int kA, int kB>
[[gnu::always_inline]] inline void multiply_tiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
}
// kC += kA kB in int8, summed in int32; kA is signed, and kB where kIsSigned.
template <int kC, int kA, int kB, bool kIsSigned>
[[gnu::always_inline]] inline void multiply_byte_tiles() {
  if constexpr (kIsSigned) {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
  } else {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
  }
}

// c [rows, columns] = (or +=) a [rows, depth] b [depth, columns]. M = rows, N = columns, K = depth, all multiples of
// 32.
struct AmxProduct {
  const uint16_t* a;  // bfloat16, rows of a_stride
  long a_stride;
  const uint32_t* b;  // pairs of bfloat16: b[i * b_stride + j] holds rows 2 i (low half) and 2 i + 1 of column j
  long b_stride;
  float* c;
  long c_stride, rows, columns, depth;
  enum class Into { kZeros, kSum } into;
};

// Computes a block of 32 x 32: tiles 0 to 3 accumulate it, 4 and 5 hold blocks of a, 6 and 7 of b.
inline void multiply_block(const AmxProduct& m, long row, long column) {
  float* const c = m.c + row * m.c_stride + column;
  const long c_bytes = m.c_stride * 4, a_bytes = m.a_stride * 2, b_bytes = m.b_stride * 4;
  if (m.into == AmxProduct::Into::kSum) {
    load_tile<0>(c, c_bytes);
    load_tile<1>(c + 16, c_bytes);
    load_tile<2>(c + 16 * m.c_stride, c_bytes);
    load_tile<3>(c + 16 * m.c_stride + 16, c_bytes);
  } else {
    zero_tile<0>();
    zero_tile<1>();
    zero_tile<2>();
    zero_tile<3>();
  }
  for (long d = 0; d < m.depth; d += 32) {
    const uint16_t* const a = m.a + row * m.a_stride + d;
    const uint32_t* const b = m.b + d / 2 * m.b_stride + column;
    load_tile<4>(a, a_bytes);
    load_tile<6>(b, b_bytes);
    multiply_tiles<0, 4, 6>();
    load_tile<7>(b + 16, b_bytes);
    multiply_tiles<1, 4, 7>();
    load_tile<5>(a + 16 * m.a_stride, a_bytes);
    multiply_tiles<2, 5, 6>();
    multiply_tiles<3, 5, 7>();
  }
  store_tile<0>(c, c_bytes);
  store_tile<1>(c + 16, c_bytes);
  store_tile<2>(c + 16 * m.c_stride, c_bytes);
  store_tile<3>(c + 16 * m.c_stride + 16, c_bytes);
}

inline void multiply(const AmxProduct& m) {
  for (long column = 0; column < m.columns; column += 32) {
    for (long row = 0; row < m.rows; row += 32) multiply_block(m, row, column);
  }
}

}  // namespace
}  // namespace headrace::cpu
