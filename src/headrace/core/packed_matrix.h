// A matrix of quantised blocks in the order in which CPU kernels read it: rows are interleaved, codes and scales keep
// their bits.
#pragma once
#include <cstdint>
#include <span>

#include "headrace/core/block_format.h"

namespace headrace {

// Does not own its memory.
struct PackedMatrix {
  BlockFormat format = BlockFormat::kQ8_0;
  int64_t out = 0, in = 0;              // in: a multiple of the elements of a block
  const unsigned char* data = nullptr;  // packed_bytes(format, out, in), aligned to 64
  // Unit u of the columns reads unit column_order[u] of x; null: unit u. Not owned.
  const int32_t* column_order = nullptr;  // in / column_unit units
  int32_t column_unit = 1;
};

// Size of the packed matrix, rows that fill up the last group of interleaved ones included.
int64_t packed_bytes(BlockFormat format, int64_t out, int64_t in);

// Packs the blocks of a matrix's rows into `packed`: of all rows, and for a part of them of the rows [first_row,
// first_row + rows.size() / row bytes), where first_row is a multiple of kPackedRows. Rows behind the last one count as
// zeros.
inline constexpr int64_t kPackedRows = 8;
void pack_rows(const PackedMatrix& shape, int64_t first_row, std::span<const unsigned char> rows,
               unsigned char* packed);

// Decodes row `row` into `values`, `in` of them, with the bits of dequantize().
void unpack_row(const PackedMatrix& matrix, int64_t row, std::span<float> values);

}  // namespace headrace
