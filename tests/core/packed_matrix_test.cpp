// Packing keeps every value's bits.
#include "headrace/core/packed_matrix.h"

#include <gtest/gtest.h>

#include <cstring>

#include "headrace/core/error.h"
#include "support/random_blocks.h"

namespace headrace::testing_support {
namespace {

testing::AssertionResult unpacks_to(const PackedMatrix& matrix, const std::vector<float>& values) {
  std::vector<float> row(static_cast<size_t>(matrix.in));
  for (int64_t r = 0; r < matrix.out; ++r) {
    unpack_row(matrix, r, row);
    if (std::memcmp(row.data(), values.data() + r * matrix.in, row.size() * sizeof(float)) != 0)
      return testing::AssertionFailure() << layout_of(matrix.format).name << ", row " << r << " of " << matrix.out;
  }
  return testing::AssertionSuccess();
}

TEST(PackedMatrix, RowsKeepTheBitsOfTheirBlocks) {
  Random random(1);
  for (const BlockFormat format : kBlockFormats) {
    for (const int64_t out : {1, 7, 8, 9, 15, 16, 17, 100}) {
      const int64_t in = layout_of(format).elements * (out == 7 ? 1 : 3);
      const Bytes blocks = random_blocks(random, format, out, in);
      EXPECT_TRUE(unpacks_to(OwnedMatrix(format, out, in, blocks).matrix, dequantized(format, blocks)));
    }
  }
}

TEST(PackedMatrix, ScalesThatAreNoNumbersStay) {
  Random random(2);
  for (const BlockFormat format : kBlockFormats) {
    Bytes blocks = random_blocks(random, format, 3, 256);
    set_scales(format, blocks, INFINITY, 1);
    EXPECT_TRUE(unpacks_to(OwnedMatrix(format, 3, 256, blocks).matrix, dequantized(format, blocks)));
  }
}

TEST(PackedMatrix, PartsGoToTheirPlaces) {
  Random random(3);
  constexpr int64_t kOut = 2 * kPackedRows + 5, kIn = 512, kFirst = kPackedRows;
  for (const BlockFormat format : kBlockFormats) {
    const Bytes blocks = random_blocks(random, format, kOut, kIn);
    const OwnedMatrix whole(format, kOut, kIn, blocks);
    Bytes packed(static_cast<size_t>(packed_bytes(format, kOut, kIn)), 0xff);
    const std::span<const unsigned char> rows(blocks);
    const size_t begin = blocks.size() / kOut * kFirst;
    pack_rows(whole.matrix, kFirst, rows.subspan(begin), packed.data());
    pack_rows(whole.matrix, 0, rows.first(begin), packed.data());
    EXPECT_EQ(std::memcmp(packed.data(), whole.matrix.data, packed.size()), 0) << layout_of(format).name;
  }
}

TEST(PackedMatrix, IsAsLargeAsTheFileButForSixBitScales) {
  for (const BlockFormat format : kBlockFormats) {
    const BlockLayout& layout = layout_of(format);
    const bool has_6_bit_scales = format == BlockFormat::kQ4_K || format == BlockFormat::kQ5_K;
    EXPECT_EQ(packed_bytes(format, 17, 1024), 32 * 1024 / layout.elements * (layout.bytes + (has_6_bit_scales ? 4 : 0)))
        << layout.name;
  }
}

TEST(PackedMatrix, RefusesWhatIsNoWholeBlockRowOrTile) {
  EXPECT_THROW(packed_bytes(BlockFormat::kQ8_0, 16, 33), Error);
  EXPECT_THROW(packed_bytes(BlockFormat::kQ4_K, 16, 320), Error);
  const Bytes rows(16 * 34);
  OwnedMatrix m(BlockFormat::kQ8_0, 16, 32, rows);
  const std::span<const unsigned char> all(rows);
  EXPECT_THROW(pack_rows(m.matrix, 8, all.first(8 * 34), m.memory.data()), Error);    // begins within a tile
  EXPECT_THROW(pack_rows(m.matrix, 0, all.first(8 * 34), m.memory.data()), Error);    // ends within one
  EXPECT_THROW(pack_rows(m.matrix, 0, all.first(100), m.memory.data()), Error);       // ends within a row
  EXPECT_THROW(pack_rows(m.matrix, 16, all.first(16 * 34), m.memory.data()), Error);  // behind the last row
  std::vector<float> values(32);
  EXPECT_THROW(unpack_row(m.matrix, 16, values), Error);
  EXPECT_THROW(unpack_row(m.matrix, 0, std::span(values).first(31)), Error);
}

}  // namespace
}  // namespace headrace::testing_support
