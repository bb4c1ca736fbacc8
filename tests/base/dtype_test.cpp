#include "headrace/base/dtype.h"

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

}  // namespace
}  // namespace headrace
