#include "headrace/core/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace headrace {
namespace {

TEST(F16, EveryValueSurvivesARoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    F16 h;
    h.bits = static_cast<uint16_t>(bits);
    const auto value = static_cast<float>(h);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(F16(value))));
    } else {
      EXPECT_EQ(F16(value).bits, h.bits) << value;
    }
  }
}

TEST(F16, RoundsToNearestTiesToEven) {
  EXPECT_EQ(static_cast<float>(F16(1.0f + 0x1p-11f)), 1.0f);
  EXPECT_EQ(static_cast<float>(F16(1.0f + 3 * 0x1p-11f)), 1.0f + 0x1p-9f);
  EXPECT_EQ(static_cast<float>(F16(65519.0f)), 65504.0f);
  EXPECT_TRUE(std::isinf(static_cast<float>(F16(65520.0f))));
  EXPECT_EQ(static_cast<float>(F16(0x1p-25f)), 0.0f);
  EXPECT_EQ(static_cast<float>(F16(0x1.8p-25f)), 0x1p-24f);
}

TEST(BF16, RoundsToNearestTiesToEvenAndKeepsNaN) {
  EXPECT_EQ(static_cast<float>(BF16(1.0f + 0x1p-8f)), 1.0f);
  EXPECT_EQ(static_cast<float>(BF16(1.0f + 3 * 0x1p-8f)), 1.0f + 0x1p-6f);
  EXPECT_TRUE(std::isnan(static_cast<float>(BF16(std::numeric_limits<float>::quiet_NaN()))));
}

// From the OCP specification's table: 4 bits of exponent with a bias of 7, 3 of fraction, S.1111.111 is NaN.
double e4m3_of(int code) {
  const int exponent = code >> 3 & 15, fraction = code & 7;
  if ((code & 0x7f) == 0x7f) return std::numeric_limits<double>::quiet_NaN();
  const double magnitude = exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
  return code >= 0x80 ? -magnitude : magnitude;
}

uint8_t e4m3_bits(double value) { return E4M3(static_cast<float>(value)).bits; }

TEST(E4M3, EveryCodeHasItsValueAndSurvivesARoundTrip) {
  for (int code = 0; code < 256; ++code) {
    E4M3 x;
    x.bits = static_cast<uint8_t>(code);
    const auto value = static_cast<float>(x);
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_EQ(E4M3(value).bits, 0x7f);
    } else {
      EXPECT_EQ(static_cast<double>(value), e4m3_of(code)) << code;
      EXPECT_EQ(E4M3(value).bits, code);
    }
  }
}

TEST(E4M3, RoundsToNearestTiesToEven) {
  for (int code = 0; code < 0x7e; ++code) {
    const double low = e4m3_of(code), high = e4m3_of(code + 1), middle = (low + high) / 2, step = (high - low) / 1024;
    const int even = code + code % 2;
    for (const int sign : {0, 0x80}) {
      const double s = sign == 0 ? 1 : -1;
      EXPECT_EQ(e4m3_bits(s * middle), even | sign) << low;
      EXPECT_EQ(e4m3_bits(s * (middle - step)), code | sign) << low;
      EXPECT_EQ(e4m3_bits(s * (middle + step)), (code + 1) | sign) << low;
    }
  }
}

TEST(E4M3, SaturatesAndKeepsNaN) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double large : {448.0, 449.0, 464.0, 480.0, 1e30, infinity}) {
    EXPECT_EQ(e4m3_bits(large), 0x7e);
    EXPECT_EQ(e4m3_bits(-large), 0xfe);
  }
  EXPECT_EQ(e4m3_bits(std::numeric_limits<double>::quiet_NaN()), 0x7f);
  EXPECT_EQ(e4m3_bits(1e-30), 0);
  EXPECT_EQ(e4m3_bits(-1e-30), 0x80);
}

}  // namespace
}  // namespace headrace
