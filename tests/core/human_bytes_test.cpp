#include "headrace/core/human_bytes.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace headrace {
namespace {

TEST(HumanBytes, HaveOneDecimalInUnitsOf1000) {
  EXPECT_EQ(human_bytes(0), "0 bytes");
  EXPECT_EQ(human_bytes(1), "1 byte");
  EXPECT_EQ(human_bytes(999), "999 bytes");
  EXPECT_EQ(human_bytes(1000), "1.0 kB");
  EXPECT_EQ(human_bytes(51712), "51.7 kB");
  EXPECT_EQ(human_bytes(3'600'000), "3.6 MB");
  EXPECT_EQ(human_bytes(458'759'340'032), "458.8 GB");
  EXPECT_EQ(human_bytes(size_t{1} << 50), "1.1 PB");
  EXPECT_EQ(human_bytes(std::numeric_limits<int64_t>::max()), "9.2 EB");
}

TEST(HumanBytes, RoundingNeverShowsAThousandOfAUnit) {
  EXPECT_EQ(human_bytes(999'949), "999.9 kB");
  EXPECT_EQ(human_bytes(999'950), "1.0 MB");
  EXPECT_EQ(human_bytes(999'999'999), "1.0 GB");
}

}  // namespace
}  // namespace headrace
