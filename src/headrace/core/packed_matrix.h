// A matrix of quantised blocks in the order in which CPU kernels read it: rows are interleaved, codes and scales keep
// their bits. One layout serves every instruction set.
//
// Sixteen rows form a tile. A tile is one stream of blocks of 32 columns (Q4_0 to Q8_0) or 256 (Q4_K, Q5_K, Q6_K). A
// block holds, in this order:
//   scales   16 float16, one per row, so that one load gives one scale per lane; then 16 float16 minima where the
//            format has them (Q4_1, Q5_1, Q4_K, Q5_K)
//   steps    256 columns only: for each group of 32 columns two bytes per row, 16 and 16. Q4_K and Q5_K: the scales and
//            the minima of 6 bits. Q6_K: the scales of the first and of the last 16 columns
//   codes    for each group of 32 columns: codes, then high bits. Four codes of a row are one 4-byte word, and the
//   words
//            of 16 rows lie side by side. Q8_0: 8 times 16 words. Others: 4 times 16 words, where word i has columns 4
//            i to 4 i + 3 in its low nibbles and columns 16 + 4 i to 16 + 4 i + 3 in its high ones
//   high     of a row's four bytes, byte b has in bit c the fifth bit of column 4 c + b (Q5). Q6_K has two such sets of
//            words for columns below 16 and from 16, with two bits each
// A tile has as many bytes as its rows in the file, and 4 more per row and 256 columns in Q4_K and Q5_K.
#pragma once
#include <cstdint>
#include <span>

#include "headrace/core/block_format.h"

namespace headrace {

inline constexpr int64_t kPackedRows = 16;    // rows of a tile
inline constexpr int64_t kGroupColumns = 32;  // columns that share scales, in every format

// Offsets in bytes. 0: the format has no such part.
struct PackedLayout {
  int code_bits = 0;      // 4, 5, 6 or 8
  int code_offset = 0;    // subtracted from an unsigned code; Q8_0 has signed ones
  int block_columns = 0;  // 32 or 256
  int minima = 0;         // in a block; scales are its first bytes
  int steps = 0;          // in a block: 32 bytes per group
  int codes = 0;          // in a block: group_bytes per group
  int high = 0;           // in a group
  int group_bytes = 0, block_bytes = 0;
};

// For constants only: a function of this header that is compiled for one instruction set must not serve another.
constexpr PackedLayout packed_layout(BlockFormat format) {
  const bool is_q6 = format == BlockFormat::kQ6_K, is_q8 = format == BlockFormat::kQ8_0;
  const bool is_5_bit = format == BlockFormat::kQ5_0 || format == BlockFormat::kQ5_1 || format == BlockFormat::kQ5_K;
  const bool is_large = is_q6 || format == BlockFormat::kQ4_K || format == BlockFormat::kQ5_K;
  const bool has_minima = format == BlockFormat::kQ4_1 || format == BlockFormat::kQ5_1 || (is_large && !is_q6);
  const int rows = static_cast<int>(kPackedRows), columns = static_cast<int>(kGroupColumns);
  PackedLayout layout;
  layout.code_bits = is_q8 ? 8 : is_q6 ? 6 : is_5_bit ? 5 : 4;
  layout.code_offset = has_minima || is_q8 ? 0 : 1 << (layout.code_bits - 1);
  layout.block_columns = is_large ? 256 : columns;
  layout.minima = has_minima ? 2 * rows : 0;
  const int scale_bytes = has_minima ? 4 * rows : 2 * rows, groups = layout.block_columns / columns;
  layout.steps = is_large ? scale_bytes : 0;
  layout.codes = scale_bytes + (is_large ? groups * 2 * rows : 0);
  layout.high = is_5_bit || is_q6 ? columns / 2 * rows : 0;
  layout.group_bytes = columns * rows * layout.code_bits / 8;
  layout.block_bytes = layout.codes + groups * layout.group_bytes;
  return layout;
}

// Does not own its memory.
struct PackedMatrix {
  BlockFormat format = BlockFormat::kQ8_0;
  int64_t out = 0, in = 0;              // in: a multiple of the elements of a block
  const unsigned char* data = nullptr;  // packed_bytes(format, out, in), aligned to 64
  // Columns of the matrix stand in another order than those of x: its unit u of `column_unit` columns (a multiple of
  // kGroupColumns) multiplies the unit column_order[u] of x. Null: the same order. Not owned.
  const int32_t* column_order = nullptr;
  int64_t column_unit = 0;
};

// Size of the packed matrix, rows that fill up the last tile included. Error kInvalidArgument if `in` is no multiple of
// the elements of a block.
int64_t packed_bytes(BlockFormat format, int64_t out, int64_t in);

// Packs the blocks of rows [first_row, first_row + rows.size() / row bytes) to their place in `packed`, which has room
// for all of `shape`; shape.data is not read. first_row is a multiple of kPackedRows, and so is the number of rows
// unless the last one of the matrix is among them. Rows behind the last one count as zeros. Parts may be packed by
// several threads at once. Error kInvalidArgument.
void pack_rows(const PackedMatrix& shape, int64_t first_row, std::span<const unsigned char> rows,
               unsigned char* packed);

// Decodes row `row` into `values`, `in` of them in the matrix's order of columns, with the bits of dequantize(). Error
// kInvalidArgument.
void unpack_row(const PackedMatrix& matrix, int64_t row, std::span<float> values);

}  // namespace headrace
