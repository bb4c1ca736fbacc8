// Quantised blocks beside ggml's bytes, and their errors beside those of ggml's own quantiser.
#include "headrace/core/block_quantizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "headrace/core/error.h"
#include "support/crc32.h"
#include "support/random.h"
#include "support/refusal.h"

namespace headrace {
namespace {

using testing_support::Random;
using Blocks = std::vector<unsigned char>;

// `error`: relative root mean square for Gaussian values. Those of ggml's quantiser for K-quants are 7.13 % (Q4_K),
// 3.61 % (Q5_K) and 1.77 % (Q6_K). `worst`: the largest error of one value beside its block's largest magnitude.
struct QuantiserCase {
  BlockFormat format;
  double error, worst;
};
const std::vector<QuantiserCase> kQuantiserCases = {
    {BlockFormat::kQ4_0, 0.0868, 0.126}, {BlockFormat::kQ4_1, 0.0790, 0.067}, {BlockFormat::kQ5_0, 0.0432, 0.063},
    {BlockFormat::kQ5_1, 0.0383, 0.033}, {BlockFormat::kQ8_0, 0.0055, 0.005}, {BlockFormat::kQ4_K, 0.0711, 0.140},
    {BlockFormat::kQ5_K, 0.0352, 0.070}, {BlockFormat::kQ6_K, 0.0175, 0.035},
};

Blocks quantized(BlockFormat format, const std::vector<float>& values) {
  const BlockLayout& layout = layout_of(format);
  Blocks blocks(values.size() / static_cast<size_t>(layout.elements) * static_cast<size_t>(layout.bytes), 0xAA);
  quantize(format, values, blocks);
  return blocks;
}

std::vector<float> round_trip(BlockFormat format, const std::vector<float>& values) {
  std::vector<float> out(values.size(), NAN);
  dequantize(format, quantized(format, values), out);
  return out;
}

std::vector<float> made(size_t count, const std::function<double(size_t)>& value) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(value(i));
  return values;
}

double largest_error(const std::vector<float>& values, const std::vector<float>& found) {
  double largest = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double error = std::abs(double{found[i]} - double{values[i]});
    largest = error <= largest ? largest : error;  // NaN counts
  }
  return largest;
}

TEST(BlockQuantizer, SimpleFormatsHaveTheBytesOfTheReference) {
  const auto values = made(256, [](size_t i) {
    const auto x = static_cast<double>(i);
    return std::sin(0.7 * x) * (1 + x / 64);
  });
  const std::vector<std::pair<BlockFormat, uint32_t>> crcs = {{BlockFormat::kQ8_0, 0x7b16a50a},
                                                              {BlockFormat::kQ4_0, 0x2f3c62b7},
                                                              {BlockFormat::kQ4_1, 0x01dc7041},
                                                              {BlockFormat::kQ5_0, 0xca0ea133},
                                                              {BlockFormat::kQ5_1, 0xd88755af}};
  for (const auto& [format, crc] : crcs)
    EXPECT_EQ(test::crc32(quantized(format, values)), crc) << layout_of(format).name;
}

TEST(BlockQuantizer, ErrorsOfGaussianRowsAreSmall) {
  Random random(7);
  for (const double deviation : {1.0, 0.02}) {
    const auto values = made(size_t{64} * 1024, [&](size_t) { return deviation * random.normal(); });
    for (const QuantiserCase& c : kQuantiserCases) {
      const std::vector<float> found = round_trip(c.format, values);
      double errors = 0, squares = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        errors += std::pow(double{found[i]} - double{values[i]}, 2), squares += std::pow(double{values[i]}, 2);
      }
      EXPECT_LT(std::sqrt(errors / squares), c.error) << layout_of(c.format).name << " " << deviation;
    }
  }
}

TEST(BlockQuantizer, NoValueIsFarOff) {
  Random random(8);
  for (const QuantiserCase& c : kQuantiserCases) {
    const auto elements = static_cast<size_t>(layout_of(c.format).elements);
    for (int round = 0; round < 200; ++round) {
      const double shift = random.normal(), power = random.uniform() * 4;
      const auto values = made(elements, [&](size_t) {
        const double x = random.normal();
        return std::copysign(std::pow(std::abs(x), power), x) + (round % 2 == 0 ? shift : 0);
      });
      double largest = 0;
      for (const float value : values) largest = std::max(largest, std::abs(double{value}));
      EXPECT_LE(largest_error(values, round_trip(c.format, values)), c.worst * largest)
          << layout_of(c.format).name << " round " << round;
    }
  }
}

TEST(BlockQuantizer, RowsOfOneValueKeepIt) {
  for (const QuantiserCase& c : kQuantiserCases) {
    for (const double value : {0.0, 0.5, -0.5, 3.14159, -1e-3, 65504.0, -65504.0}) {
      const auto values = made(512, [&](size_t) { return value; });
      // Scales have 11 bits, fewer below 2^-14.
      EXPECT_LE(largest_error(values, round_trip(c.format, values)), std::abs(value) * 3e-3 + 1e-6)
          << layout_of(c.format).name << " " << value;
    }
  }
}

// A float16 scale is a multiple of 2^-24.
TEST(BlockQuantizer, SmallValuesAreAsNearAsFloat16ScalesAllow) {
  for (const QuantiserCase& c : kQuantiserCases) {
    const auto wave = [](double size) {
      return made(256, [size](size_t i) { return size * std::sin(static_cast<double>(i)); });
    };
    for (const double size : {1e-2, 1e-3, 1e-4}) {
      EXPECT_LE(largest_error(wave(size), round_trip(c.format, wave(size))), (c.worst + 0.02) * size)
          << layout_of(c.format).name << " " << size;
    }
    for (const double size : {1e-7, 1e-12, 1e-30, 1e-38, 1e-42, 1e-45}) {
      EXPECT_LE(largest_error(wave(size), round_trip(c.format, wave(size))), 1.5 * size + 0x1p-23)
          << layout_of(c.format).name << " " << size;
    }
  }
}

TEST(BlockQuantizer, OneLargeValueAmongZerosStays) {
  for (const QuantiserCase& c : kQuantiserCases) {
    for (const double value : {65504.0, -65504.0, 1.0}) {
      auto values = made(256, [](size_t) { return 0; });
      values[100] = static_cast<float>(value);
      EXPECT_LE(largest_error(values, round_trip(c.format, values)), std::abs(value) * 1e-3)
          << layout_of(c.format).name << " " << value;
    }
  }
}

TEST(BlockQuantizer, RefusesWhatItCannotHold) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();
  for (const QuantiserCase& c : kQuantiserCases) {
    for (const float value : {kNaN, kInfinity, -kInfinity, 65536.0F, -3e38F}) {
      auto values = made(512, [](size_t i) { return static_cast<double>(i); });
      values[300] = value;
      const auto refusal = testing_support::refusal_of([&] { quantized(c.format, values); });
      EXPECT_EQ(refusal.code, ErrorCode::kInvalidArgument) << layout_of(c.format).name << " " << value;
      const std::optional<float> found = unquantizable(values);
      ASSERT_TRUE(found);
      EXPECT_TRUE(*found == value || std::isnan(value));
    }
    EXPECT_FALSE(unquantizable(std::vector<float>{0, kMostQuantizable, -kMostQuantizable}));
    Blocks blocks(static_cast<size_t>(layout_of(c.format).bytes));
    EXPECT_THROW(quantize(c.format, std::vector<float>(31), blocks), Error);
    EXPECT_THROW(quantize(c.format, std::vector<float>(512), blocks), Error);
  }
}

}  // namespace
}  // namespace headrace
