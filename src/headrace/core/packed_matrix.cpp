#include "headrace/core/packed_matrix.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "headrace/core/dtype.h"
#include "headrace/core/error.h"

namespace headrace {
namespace {

constexpr int kRows = static_cast<int>(kPackedRows), kColumns = static_cast<int>(kGroupColumns);
constexpr int kWords = kColumns / 4;             // of a row's codes in a group, four to a word
constexpr size_t kWordStride = 4 * kPackedRows;  // bytes between two words of a row
constexpr uint32_t kNibbles = 0x0f0f0f0f, kPairs = 0x03030303, kBits = 0x01010101;

uint32_t word_at(const unsigned char* bytes, int i) {
  uint32_t word = 0;
  std::memcpy(&word, bytes + 4 * i, sizeof word);
  return word;
}
void put_word(unsigned char* plane, int i, uint32_t word) {
  std::memcpy(plane + static_cast<size_t>(i) * kWordStride, &word, sizeof word);
}

// The codes of a row in a group as a file has them: word i of 4 bytes has columns 4 i to 4 i + 3.
using GroupWords = std::array<uint32_t, kWords>;

// `plane`: this row's first word.
void put_nibbles(unsigned char* plane, const GroupWords& codes) {
  for (int i = 0; i < kWords / 2; ++i)
    put_word(plane, i,
             (codes[static_cast<size_t>(i)] & kNibbles) | (codes[static_cast<size_t>(i + 4)] & kNibbles) << 4);
}

// Bit i of `bits` belongs to column i.
uint32_t fifth_bits(uint32_t bits) {
  uint32_t word = 0;
  for (int byte = 0; byte < 4; ++byte) {
    uint32_t x = (bits >> byte) & 0x11111111;  // every fourth bit, moved together
    x = (x | x >> 3) & 0x03030303;
    x = (x | x >> 6) & 0x000f000f;
    word |= ((x | x >> 12) & 0xff) << (8 * byte);
  }
  return word;
}

// Blocks of 32: scale, minimum if any, fifth bits if any, nibbles (or bytes of Q8_0).
template <BlockFormat kFormat>
void pack_small_row(const unsigned char* block, unsigned char* to, int row) {
  constexpr PackedLayout kLayout = packed_layout(kFormat);
  constexpr int kScaleBytes = kLayout.minima != 0 ? 4 : 2;
  std::memcpy(to + 2 * row, block, 2);
  if constexpr (kLayout.minima != 0) std::memcpy(to + kLayout.minima + 2 * row, block + 2, 2);
  unsigned char* const codes = to + kLayout.codes + 4 * row;
  if constexpr (kLayout.high != 0) put_word(codes + kLayout.high, 0, fifth_bits(word_at(block + kScaleBytes, 0)));
  constexpr int kFrom = kLayout.high != 0 ? kScaleBytes + 4 : kScaleBytes;
  constexpr int kNumWords = kLayout.code_bits == 8 ? kWords : kWords / 2;  // nibbles stand as in the file
  for (int i = 0; i < kNumWords; ++i) put_word(codes, i, word_at(block + kFrom, i));
}

// The scale and the minimum of 6 bits of a group of 32, from 12 bytes.
void put_steps(const unsigned char* bytes, int group, unsigned char* to) {
  const int scale = group < 4 ? bytes[group] & 63 : (bytes[group + 4] & 15) | ((bytes[group - 4] >> 6) << 4);
  const int least = group < 4 ? bytes[group + 4] & 63 : (bytes[group + 4] >> 4) | ((bytes[group] >> 6) << 4);
  to[0] = static_cast<unsigned char>(scale);
  to[kRows] = static_cast<unsigned char>(least);
}

template <BlockFormat kFormat>
void pack_row_of_groups(const unsigned char* block, unsigned char* to, int row) {
  constexpr PackedLayout kLayout = packed_layout(kFormat);
  constexpr int kLow = kLayout.high != 0 ? 48 : 16;
  std::memcpy(to + 2 * row, block, 2);
  std::memcpy(to + kLayout.minima + 2 * row, block + 2, 2);
  for (int group = 0; group < 8; ++group) {
    put_steps(block + 4, group, to + kLayout.steps + 2 * kRows * group + row);
    unsigned char* const codes = to + kLayout.codes + kLayout.group_bytes * group + 4 * row;
    GroupWords words;
    for (int i = 0; i < kWords; ++i)
      words[static_cast<size_t>(i)] = word_at(block + kLow + kColumns * (group / 2), i) >> (4 * (group % 2));
    put_nibbles(codes, words);
    if constexpr (kLayout.high != 0) {
      uint32_t bits = 0;
      for (int i = 0; i < kWords; ++i) bits |= ((word_at(block + 16, i) >> group) & kBits) << i;
      put_word(codes + kLayout.high, 0, bits);
    }
  }
}

void pack_row_of_q6_k(const unsigned char* block, unsigned char* to, int row) {
  constexpr PackedLayout kLayout = packed_layout(BlockFormat::kQ6_K);
  std::memcpy(to + 2 * row, block + 208, 2);
  for (int group = 0; group < 8; ++group) {
    const int half = group / 4, quarter = group % 4;
    to[kLayout.steps + 2 * kRows * group + row] = block[192 + 2 * group];
    to[kLayout.steps + 2 * kRows * group + kRows + row] = block[193 + 2 * group];
    unsigned char* const codes = to + kLayout.codes + kLayout.group_bytes * group + 4 * row;
    const unsigned char *const low = block + 64 * half + 32 * (quarter % 2), *const high = block + 128 + 32 * half;
    GroupWords words;
    for (int i = 0; i < kWords; ++i) words[static_cast<size_t>(i)] = word_at(low, i) >> (4 * (quarter / 2));
    put_nibbles(codes, words);
    for (int plane = 0; plane < 2; ++plane) {
      uint32_t bits = 0;
      for (int i = 0; i < 4; ++i) bits |= ((word_at(high, 4 * plane + i) >> (2 * quarter)) & kPairs) << (2 * i);
      put_word(codes + kLayout.high, plane, bits);
    }
  }
}

// Reads one block of a row, writes that row's part of a packed block.
using PackRow = void (*)(const unsigned char* block, unsigned char* to, int row);
template <BlockFormat kFormat>
constexpr PackRow pack_row_of() {
  if constexpr (kFormat == BlockFormat::kQ6_K) return pack_row_of_q6_k;
  if constexpr (packed_layout(kFormat).block_columns == kColumns) return pack_small_row<kFormat>;
  return pack_row_of_groups<kFormat>;
}

// Packs a tile of `rows` rows, `row_bytes` apart.
template <BlockFormat kFormat>
void pack_tile(const unsigned char* from, int rows, size_t row_bytes, unsigned char* to) {
  constexpr PackRow kPack = pack_row_of<kFormat>();
  constexpr auto kBlockBytes = static_cast<size_t>(packed_layout(kFormat).block_bytes);
  const auto block_bytes = static_cast<size_t>(layout_of(kFormat).bytes);
  for (size_t at = 0; at < row_bytes; at += block_bytes, to += kBlockBytes) {
    if (rows < kRows) std::memset(to, 0, kBlockBytes);
    for (int row = 0; row < rows; ++row) kPack(from + static_cast<size_t>(row) * row_bytes + at, to, row);
  }
}

// Codes of a row's group, without the format's offset. `group`: that row's first word.
template <BlockFormat kFormat>
void read_codes(const unsigned char* group, int (&codes)[kColumns]) {
  constexpr PackedLayout kLayout = packed_layout(kFormat);
  for (int i = 0; i < kColumns; ++i) {
    const int word = i / 4, byte = i % 4;
    const auto at = [&](int of_word) {
      return group[static_cast<size_t>(of_word) * kWordStride + static_cast<size_t>(byte)];
    };
    if constexpr (kLayout.code_bits == 8) {
      codes[i] = static_cast<signed char>(at(word));
      continue;
    }
    codes[i] = word < 4 ? at(word) & 15 : at(word - 4) >> 4;
    const unsigned char* const high = group + kLayout.high + byte;
    if constexpr (kLayout.code_bits == 5) codes[i] |= ((high[0] >> word) & 1) << 4;
    if constexpr (kLayout.code_bits == 6)
      codes[i] |= ((high[static_cast<size_t>(word / 4) * kWordStride] >> (2 * (word % 4))) & 3) << 4;
  }
}

float scale_at(const unsigned char* bytes) {
  F16 value;
  std::memcpy(&value.bits, bytes, sizeof value.bits);
  return static_cast<float>(value);
}

// The products that dequantize() rounds, in its order.
template <BlockFormat kFormat>
void unpack_group(const unsigned char* block, int group, int row, float* values) {
  constexpr PackedLayout kLayout = packed_layout(kFormat);
  int codes[kColumns];
  read_codes<kFormat>(block + kLayout.codes + kLayout.group_bytes * group + 4 * row, codes);
  const float scale = scale_at(block + 2 * row);
  const unsigned char* const steps = block + kLayout.steps + 2 * kRows * group + row;
  const auto number = [&](int i) { return static_cast<float>(codes[i] - kLayout.code_offset); };
  if constexpr (kFormat == BlockFormat::kQ6_K) {
    for (int i = 0; i < kColumns; ++i)
      values[i] = scale * static_cast<float>(static_cast<signed char>(steps[i / 16 * kRows])) * number(i);
  } else if constexpr (kLayout.steps != 0) {
    const float step = scale * static_cast<float>(steps[0]);
    const float offset = scale_at(block + kLayout.minima + 2 * row) * static_cast<float>(steps[kRows]);
    for (int i = 0; i < kColumns; ++i) values[i] = step * number(i) - offset;
  } else if constexpr (kLayout.minima != 0) {
    const float least = scale_at(block + kLayout.minima + 2 * row);
    for (int i = 0; i < kColumns; ++i) values[i] = scale * number(i) + least;
  } else {
    for (int i = 0; i < kColumns; ++i) values[i] = scale * number(i);
  }
}

template <BlockFormat kFormat>
void unpack_tile_row(const unsigned char* tile, int row, std::span<float> values) {
  constexpr PackedLayout kLayout = packed_layout(kFormat);
  float* to = values.data();
  for (const unsigned char* block = tile; to < values.data() + values.size(); block += kLayout.block_bytes) {
    for (int group = 0; group < kLayout.block_columns / kColumns; ++group, to += kColumns)
      unpack_group<kFormat>(block, group, row, to);
  }
}

// One format's functions and sizes.
struct Packing {
  PackedLayout layout;
  void (*pack_tile)(const unsigned char* from, int rows, size_t row_bytes, unsigned char* to);
  void (*unpack_row)(const unsigned char* tile, int row, std::span<float> values);
};
template <BlockFormat kFormat>
constexpr Packing kPacking = {packed_layout(kFormat), pack_tile<kFormat>, unpack_tile_row<kFormat>};

// In the order of BlockFormat.
constexpr std::array<Packing, kNumBlockFormats> kPackings = {
    kPacking<BlockFormat::kQ4_0>, kPacking<BlockFormat::kQ4_1>, kPacking<BlockFormat::kQ5_0>,
    kPacking<BlockFormat::kQ5_1>, kPacking<BlockFormat::kQ8_0>, kPacking<BlockFormat::kQ4_K>,
    kPacking<BlockFormat::kQ5_K>, kPacking<BlockFormat::kQ6_K>};
const Packing& packing_of(BlockFormat format) { return kPackings[static_cast<size_t>(format)]; }

int64_t tile_bytes(BlockFormat format, int64_t in) {
  const PackedLayout& layout = packing_of(format).layout;
  HR_REQUIRE(in >= 0 && in % layout.block_columns == 0, ErrorCode::kInvalidArgument, "packed matrix: ", in,
             " columns of ", layout_of(format).name, ", expected a multiple of ", layout.block_columns);
  return in / layout.block_columns * layout.block_bytes;
}

}  // namespace

int64_t packed_bytes(BlockFormat format, int64_t out, int64_t in) {
  HR_REQUIRE(out >= 0, ErrorCode::kInvalidArgument, "packed matrix: ", out, " rows, expected 0 or more");
  return (out + kPackedRows - 1) / kPackedRows * tile_bytes(format, in);
}

void pack_rows(const PackedMatrix& shape, int64_t first_row, std::span<const unsigned char> rows,
               unsigned char* packed) {
  const BlockLayout& layout = layout_of(shape.format);
  const int64_t bytes = tile_bytes(shape.format, shape.in), row_bytes = shape.in / layout.elements * layout.bytes;
  if (row_bytes == 0 || rows.empty()) return;
  const int64_t num_rows = std::ssize(rows) / row_bytes, end = first_row + num_rows;
  HR_REQUIRE(num_rows * row_bytes == std::ssize(rows), ErrorCode::kInvalidArgument, "packed matrix: ", rows.size(),
             " bytes, expected rows of ", row_bytes);
  HR_REQUIRE(first_row >= 0 && first_row % kPackedRows == 0 && end <= shape.out &&
                 (end == shape.out || num_rows % kPackedRows == 0),
             ErrorCode::kInvalidArgument, "packed matrix: rows ", first_row, " to ", end, " of ", shape.out,
             ", expected tiles of ", kPackedRows, " rows");
  for (int64_t row = first_row; row < end; row += kPackedRows) {
    packing_of(shape.format)
        .pack_tile(rows.data() + (row - first_row) * row_bytes, static_cast<int>(std::min(kPackedRows, end - row)),
                   static_cast<size_t>(row_bytes), packed + row / kPackedRows * bytes);
  }
}

void unpack_row(const PackedMatrix& matrix, int64_t row, std::span<float> values) {
  const int64_t bytes = tile_bytes(matrix.format, matrix.in);
  HR_REQUIRE(row >= 0 && row < matrix.out && std::ssize(values) == matrix.in, ErrorCode::kInvalidArgument,
             "packed matrix: row ", row, " of ", matrix.out, " into ", values.size(), " values, expected ", matrix.in);
  packing_of(matrix.format)
      .unpack_row(matrix.data + row / kPackedRows * bytes, static_cast<int>(row % kPackedRows), values);
}

}  // namespace headrace
