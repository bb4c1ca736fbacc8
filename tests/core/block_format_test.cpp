// Blocks of GGUF's formats beside bytes and values of ggml's own reference.
#include "headrace/core/block_format.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "headrace/core/error.h"
#include "support/crc32.h"

namespace headrace {
namespace {

using Bytes = std::vector<unsigned char>;

struct FormatCase {
  BlockFormat format;
  uint32_t crc;                         // of the block's values
  std::vector<float> spot_values = {};  // of the elements 0, 1, 17 and the last
};
const std::vector<FormatCase> kFormatCases = {
    {BlockFormat::kQ4_0, 0x2949b547},
    {BlockFormat::kQ4_1, 0xe5a89dfe},
    {BlockFormat::kQ5_0, 0x8dac3c9a},
    {BlockFormat::kQ5_1, 0xdde1dcff},
    {BlockFormat::kQ8_0, 0x6d773c71, {8.4979248F, 12.1970215F, -5.39868164F, -4.79882812F}},
    {BlockFormat::kQ4_K, 0xca1e4072, {31.6061096F, -2.48556519F, -2.48556519F, 4.89260864F}},
    {BlockFormat::kQ5_K, 0x4d146849, {81.1940002F, -2.48556519F, -2.48556519F, 10.8911438F}},
    {BlockFormat::kQ6_K, 0x1f09b9aa, {-143.065063F, 169.558594F, 51.1875F, -5.99853516F}},
};

int scales_at(BlockFormat format) { return format == BlockFormat::kQ6_K ? 208 : 0; }
bool has_least(BlockFormat format) {
  return format == BlockFormat::kQ4_1 || format == BlockFormat::kQ5_1 || format == BlockFormat::kQ4_K ||
         format == BlockFormat::kQ5_K;
}

void put_f16(Bytes& block, int at, uint16_t bits) { std::memcpy(block.data() + at, &bits, sizeof bits); }

Bytes block_of(BlockFormat format) {
  Bytes block(static_cast<size_t>(layout_of(format).bytes));
  for (size_t i = 0; i < block.size(); ++i) block[i] = static_cast<unsigned char>(37 * i + 11);
  put_f16(block, scales_at(format), 0x2E66);
  if (has_least(format)) put_f16(block, 2, 0x2A3D);
  return block;
}

std::vector<float> values_of(BlockFormat format, const Bytes& blocks) {
  const BlockLayout& layout = layout_of(format);
  std::vector<float> values(blocks.size() / static_cast<size_t>(layout.bytes) * static_cast<size_t>(layout.elements),
                            NAN);
  dequantize(format, blocks, values);
  return values;
}

// A zero counts without its sign.
uint32_t crc32_of(std::vector<float> values) {
  for (float& value : values) value += 0.0F;
  return test::crc32({reinterpret_cast<const unsigned char*>(values.data()), values.size() * sizeof(float)});
}

TEST(BlockFormat, ValuesHaveTheBitsOfTheReference) {
  for (const FormatCase& c : kFormatCases) {
    const std::string_view name = layout_of(c.format).name;
    const std::vector<float> values = values_of(c.format, block_of(c.format));
    EXPECT_EQ(crc32_of(values), c.crc) << name;
    if (c.spot_values.empty()) continue;
    const std::vector<float> found = {values[0], values[1], values[17], values.back()};
    for (size_t i = 0; i < found.size(); ++i) EXPECT_FLOAT_EQ(found[i], c.spot_values[i]) << name << " " << i;
  }
}

TEST(BlockFormat, BlocksFollowOneAnother) {
  for (const FormatCase& c : kFormatCases) {
    Bytes two = block_of(c.format), second = two;
    second.back() ^= 1;
    put_f16(second, scales_at(c.format), 0x3C00);
    two.insert(two.end(), second.begin(), second.end());
    const std::vector<float> both = values_of(c.format, two), first = values_of(c.format, block_of(c.format)),
                             other = values_of(c.format, second);
    EXPECT_TRUE(std::equal(first.begin(), first.end(), both.begin())) << layout_of(c.format).name;
    EXPECT_TRUE(std::equal(other.begin(), other.end(), both.begin() + std::ssize(first))) << layout_of(c.format).name;
  }
}

TEST(BlockFormat, FindsScalesThatAreNoNumbers) {
  for (const FormatCase& c : kFormatCases) {
    Bytes blocks = block_of(c.format);
    blocks.resize(3 * blocks.size());
    EXPECT_FALSE(has_broken_scale(c.format, blocks)) << layout_of(c.format).name;
    const int last = 2 * layout_of(c.format).bytes + scales_at(c.format) + (has_least(c.format) ? 2 : 0);
    for (const uint16_t broken : {0x7C00, 0xFC00, 0x7E01}) {
      put_f16(blocks, last, broken);
      EXPECT_TRUE(has_broken_scale(c.format, blocks)) << layout_of(c.format).name;
    }
  }
}

TEST(BlockFormat, RefusesPartsOfBlocks) {
  std::vector<float> values(32);
  EXPECT_THROW(dequantize(BlockFormat::kQ8_0, Bytes(33), values), Error);
  EXPECT_THROW(dequantize(BlockFormat::kQ8_0, Bytes(68), values), Error);
}

}  // namespace
}  // namespace headrace
