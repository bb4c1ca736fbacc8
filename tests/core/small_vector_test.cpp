#include "headrace/core/small_vector.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace headrace {
namespace {

std::vector<int> elements_of(const SmallVector<int>& v) { return {v.begin(), v.end()}; }

TEST(SmallVector, HoldsItsElementsInOrderWhateverTheirNumber) {
  SmallVector<int> v;
  EXPECT_TRUE(v.empty());
  std::vector<int> expected;
  for (int i = 0; i < 5; ++i) {
    v.push_back(i), expected.push_back(i);
    EXPECT_EQ(elements_of(v), expected);
    EXPECT_EQ(v.size(), expected.size());
    EXPECT_EQ(v.front(), 0);
    EXPECT_EQ(v.back(), i);
    EXPECT_EQ(v[v.size() - 1], i);
  }
  EXPECT_EQ(elements_of({7, 8}), (std::vector{7, 8}));
  EXPECT_EQ(elements_of(std::vector{1, 2, 3}), (std::vector{1, 2, 3}));
}

TEST(SmallVector, CopiesAndMovedOnesHaveTheElements) {
  for (const int count : {0, 1, 3}) {
    SmallVector<int> v;
    for (int i = 0; i < count; ++i) v.emplace_back() = i;
    const std::vector<int> expected = elements_of(v);
    const SmallVector<int> copy = v;
    EXPECT_EQ(elements_of(copy), expected);
    v = SmallVector<int>(std::vector{9, 9});
    EXPECT_EQ(elements_of(v), (std::vector{9, 9}));
    SmallVector<int> other = copy;
    v = std::move(other);
    EXPECT_EQ(elements_of(v), expected);
  }
}

TEST(SmallVector, ASingleElementLiesWithinIt) {
  const SmallVector<int> one{5};
  const auto* begin = reinterpret_cast<const char*>(&one);
  const auto* at = reinterpret_cast<const char*>(&one.front());
  EXPECT_TRUE(begin <= at && at < begin + sizeof one);
}

}  // namespace
}  // namespace headrace
