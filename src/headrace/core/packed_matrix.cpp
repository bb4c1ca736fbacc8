#include "headrace/core/packed_matrix.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "headrace/core/dtype.h"
#include "headrace/core/error.h"

namespace headrace {
namespace {

// NOLINTBEGIN(bugprone-implicit-widening-of-multiplication-result): offsets within a tile

constexpr int kRows = static_cast<int>(kPackedRows), kColumns = static_cast<int>(kGroupColumns);
constexpr int kWords = kColumns / 4;             // of a row's codes in a group, four to a word
constexpr size_t kWordStride = 4 * kPackedRows;  // bytes between two words of a row
constexpr uint32_t kNibbles = 0x0f0f0f0f, kPairs = 0x03030303, kBits = 0x01010101;
constexpr int kQuad = 4;  // rows that are packed together

// A word of each of four rows.
using Words [[gnu::vector_size(4 * kQuad)]] = uint32_t;
using WordsInMemory [[gnu::vector_size(4 * kQuad), gnu::aligned(1), gnu::may_alias]] = uint32_t;

uint32_t word_at(const unsigned char* bytes) {
  uint32_t word = 0;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}
void put_words(unsigned char* to, Words words) { *reinterpret_cast<WordsInMemory*>(to) = words; }

// Blocks of four rows of a file.
struct Quad {
  std::array<const unsigned char*, kQuad> rows;

  Words word(int at) const {
    return Words{word_at(rows[0] + at), word_at(rows[1] + at), word_at(rows[2] + at), word_at(rows[3] + at)};
  }
  // Four words that follow one another, from byte `at` on.
  std::array<Words, 4> words(int at) const {
    const auto row = [&](size_t r) -> Words { return *reinterpret_cast<const WordsInMemory*>(rows[r] + at); };
    const Words r0 = row(0), r1 = row(1), r2 = row(2), r3 = row(3);
    const Words a = __builtin_shufflevector(r0, r1, 0, 4, 1, 5), b = __builtin_shufflevector(r2, r3, 0, 4, 1, 5);
    const Words c = __builtin_shufflevector(r0, r1, 2, 6, 3, 7), d = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
    return {__builtin_shufflevector(a, b, 0, 1, 4, 5), __builtin_shufflevector(a, b, 2, 3, 6, 7),
            __builtin_shufflevector(c, d, 0, 1, 4, 5), __builtin_shufflevector(c, d, 2, 3, 6, 7)};
  }
  // Copies `bytes` bytes of each row to a place of its own, that far apart.
  void copy(int at, int bytes, unsigned char* to) const {
    for (int r = 0; r < kQuad; ++r)
      std::memcpy(to + bytes * r, rows[static_cast<size_t>(r)] + at, static_cast<size_t>(bytes));
  }
};

// Bit i of a word belongs to column i.
Words fifth_bits(Words bits) {
  Words result{};
  for (int byte = 0; byte < 4; ++byte) {
    Words x = (bits >> byte) & 0x11111111;  // every fourth bit, moved together
    x = (x | x >> 3) & 0x03030303;
    x = (x | x >> 6) & 0x000f000f;
    result |= ((x | x >> 12) & 0xff) << (8 * byte);
  }
  return result;
}

// Blocks of 32 columns: their bytes stand as in the file.
template <BlockFormat kFormat>
void pack_small_quad(const Quad& quad, unsigned char* to, int row) {
  constexpr PackedLayout kLayout = packed_layout(kFormat);
  constexpr int kScaleBytes = kLayout.minima != 0 ? 4 : 2, kFrom = kLayout.high != 0 ? kScaleBytes + 4 : kScaleBytes;
  quad.copy(0, 2, to + 2 * row);
  if constexpr (kLayout.minima != 0) quad.copy(2, 2, to + kLayout.minima + 2 * row);
  unsigned char* const codes = to + kLayout.codes + 4 * row;
  if constexpr (kLayout.high != 0) put_words(codes + kLayout.high, fifth_bits(quad.word(kScaleBytes)));
  for (int i = 0; i < (kLayout.code_bits == 8 ? kWords : kWords / 2); i += 4) {
    const std::array<Words, 4> words = quad.words(kFrom + 4 * i);
    for (int j = 0; j < 4; ++j)
      put_words(codes + static_cast<size_t>(i + j) * kWordStride, words[static_cast<size_t>(j)]);
  }
}

// Stores byte i of each row's word at `to` + i * `stride`.
void put_bytes(unsigned char* to, size_t stride, Words words) {
  using Bytes [[gnu::vector_size(4 * kQuad)]] = unsigned char;
  const auto rows = reinterpret_cast<Bytes>(words);
  const auto bytes = reinterpret_cast<Words>(
      __builtin_shufflevector(rows, rows, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  for (size_t i = 0; i < 4; ++i) {
    const uint32_t word = bytes[i];
    std::memcpy(to + i * stride, &word, sizeof word);
  }
}

// The scales and the minima of 6 bits of eight groups, from 12 bytes. `to`: the place of the first scale of the quad.
void put_steps(const Quad& quad, unsigned char* to) {
  constexpr uint32_t kSixBits = 0x3f3f3f3f;
  constexpr size_t kGroupStride = 2 * kRows;  // scales of the rows, and minima
  const Words scales = quad.word(4), minima = quad.word(8), both = quad.word(12);
  put_bytes(to, kGroupStride, scales & kSixBits);
  put_bytes(to + kRows, kGroupStride, minima & kSixBits);
  to += 4 * kGroupStride;
  put_bytes(to, kGroupStride, (both & kNibbles) | ((scales >> 6) & kPairs) << 4);
  put_bytes(to + kRows, kGroupStride, ((both >> 4) & kNibbles) | ((minima >> 6) & kPairs) << 4);
}

// The bytes that hold the nibbles of two groups.
struct NibbleBytes {
  std::array<Words, 4> first, last;

  NibbleBytes(const Quad& quad, int at) : first(quad.words(at)), last(quad.words(at + kColumns / 2)) {}
  // Puts one nibble of each byte, moved down by `shift`.
  void put(int shift, unsigned char* codes) const {
    for (size_t i = 0; i < 4; ++i)
      put_words(codes + i * kWordStride, ((first[i] >> shift) & kNibbles) | ((last[i] >> shift) & kNibbles) << 4);
  }
};

// Gathers some bits of each byte (kMask, moved down by `shift`) of four words: those of word i from bit kMove i on.
template <uint32_t kMask, int kMove>
Words high_bits(const std::array<Words, 4>& words, int shift) {
  Words bits{};
  for (size_t i = 0; i < 4; ++i) bits |= ((words[i] >> shift) & kMask) << (kMove * i);
  return bits;
}

template <BlockFormat kFormat>
void pack_quad_of_groups(const Quad& quad, unsigned char* to, int row) {
  constexpr PackedLayout kLayout = packed_layout(kFormat);
  constexpr int kLow = kLayout.high != 0 ? 48 : 16;
  quad.copy(0, 2, to + 2 * row);
  quad.copy(2, 2, to + kLayout.minima + 2 * row);
  std::array<Words, 4> first{}, last{};
  if constexpr (kLayout.high != 0) first = quad.words(16), last = quad.words(32);
  put_steps(quad, to + kLayout.steps + row);
  for (int group = 0; group < 8; group += 2) {
    const NibbleBytes nibbles(quad, kLow + kColumns * (group / 2));
    for (int i = 0; i < 2; ++i) {
      unsigned char* const codes = to + kLayout.codes + kLayout.group_bytes * (group + i) + 4 * row;
      nibbles.put(4 * i, codes);
      if constexpr (kLayout.high != 0)
        put_words(codes + kLayout.high, high_bits<kBits, 1>(first, group + i) | high_bits<kBits, 1>(last, group + i)
                                                                                    << 4);
    }
  }
}

void pack_quad_of_q6_k(const Quad& quad, unsigned char* to, int row) {
  constexpr PackedLayout kLayout = packed_layout(BlockFormat::kQ6_K);
  quad.copy(208, 2, to + 2 * row);
  const std::array<Words, 4> steps = quad.words(192);  // two scales of each group
  for (size_t i = 0; i < 4; ++i) put_bytes(to + kLayout.steps + row + 4 * i * kRows, kRows, steps[i]);
  for (int half = 0; half < 2; ++half) {
    const std::array<Words, 4> first = quad.words(128 + 32 * half), last = quad.words(144 + 32 * half);
    for (int part = 0; part < 2; ++part) {
      const NibbleBytes nibbles(quad, 64 * half + 32 * part);
      for (int i = 0; i < 2; ++i) {
        const int quarter = part + 2 * i;
        unsigned char* const codes = to + kLayout.codes + kLayout.group_bytes * (4 * half + quarter) + 4 * row;
        nibbles.put(4 * i, codes);
        put_words(codes + kLayout.high, high_bits<kPairs, 2>(first, 2 * quarter));
        put_words(codes + kLayout.high + kWordStride, high_bits<kPairs, 2>(last, 2 * quarter));
      }
    }
  }
}

// Reads a block of four rows, writes their part of a packed block.
using PackQuad = void (*)(const Quad& quad, unsigned char* to, int row);
template <BlockFormat kFormat>
constexpr PackQuad pack_quad_of() {
  if constexpr (kFormat == BlockFormat::kQ6_K) return pack_quad_of_q6_k;
  if constexpr (packed_layout(kFormat).block_columns == kColumns) return pack_small_quad<kFormat>;
  return pack_quad_of_groups<kFormat>;
}

// Packs a tile of `rows` rows, `row_bytes` apart.
template <BlockFormat kFormat>
void pack_tile(const unsigned char* from, int rows, size_t row_bytes, unsigned char* to) {
  constexpr PackQuad kPack = pack_quad_of<kFormat>();
  constexpr auto kBlockBytes = static_cast<size_t>(packed_layout(kFormat).block_bytes);
  static constexpr std::array<unsigned char, 256> kZeros{};  // a block of rows behind the last one
  const auto block_bytes = static_cast<size_t>(layout_of(kFormat).bytes);
  for (size_t at = 0; at < row_bytes; at += block_bytes, to += kBlockBytes) {
    for (int row = 0; row < kRows; row += kQuad) {
      Quad quad{};
      for (int r = row; r < row + kQuad; ++r) {
        quad.rows[static_cast<size_t>(r - row)] =
            r < rows ? from + static_cast<size_t>(r) * row_bytes + at : kZeros.data();
      }
      kPack(quad, to, row);
    }
  }
}

// The codes of a row's group, one to a byte and without the format's offset. `group`: that row's first word.
template <BlockFormat kFormat>
std::array<unsigned char, kColumns> codes_of(const unsigned char* group) {
  constexpr PackedLayout kLayout = packed_layout(kFormat);
  const auto stored = [group](int i) { return word_at(group + static_cast<size_t>(i) * kWordStride); };
  std::array<unsigned char, kColumns> codes{};
  for (int i = 0; i < kWords; ++i) {
    uint32_t word = 0;
    if constexpr (kLayout.code_bits == 8) {
      word = stored(i);
    } else {
      word = (stored(i % 4) >> (i < 4 ? 0 : 4)) & kNibbles;
    }
    const unsigned char* const high = group + kLayout.high;
    if constexpr (kLayout.code_bits == 5) word |= ((word_at(high) >> i) & kBits) << 4;
    if constexpr (kLayout.code_bits == 6)
      word |= ((word_at(high + static_cast<size_t>(i / 4) * kWordStride) >> (2 * (i % 4))) & kPairs) << 4;
    std::memcpy(&codes[4 * static_cast<size_t>(i)], &word, sizeof word);
  }
  return codes;
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
  const auto codes = codes_of<kFormat>(block + kLayout.codes + kLayout.group_bytes * group + 4 * row);
  const float scale = scale_at(block + 2 * row);
  const unsigned char* const steps = block + kLayout.steps + 2 * kRows * group + row;
  const auto number = [&](int i) {
    const unsigned char code = codes[static_cast<size_t>(i)];
    return static_cast<float>(kLayout.code_bits == 8 ? static_cast<signed char>(code) : code - kLayout.code_offset);
  };
  if constexpr (kFormat == BlockFormat::kQ6_K) {
    for (int half = 0; half < 2; ++half) {
      const float step = scale * static_cast<float>(static_cast<signed char>(steps[half * kRows]));
      for (int i = 16 * half; i < 16 * half + 16; ++i) values[i] = step * number(i);
    }
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

// NOLINTEND(bugprone-implicit-widening-of-multiplication-result)

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
