#include "headrace/cache/prefix_cache.h"

#include <gtest/gtest.h>

namespace headrace {
namespace {

using Ids = std::vector<int32_t>;

TEST(PrefixCache, TheLongestCommonBeginningInWholePagesIsFound) {
  PrefixCache kept(2);
  EXPECT_TRUE(kept.keep(Ids{1, 2, 3, 4, 5, 6, 7}, {10, 11, 12}).empty());  // the seventh token is in no page
  EXPECT_TRUE(kept.keep(Ids{1, 2, 3, 9}, {20, 21}).empty());
  EXPECT_EQ(kept.find(Ids{1, 2, 3, 4, 5, 8, 8, 8}, 9), (Ids{10, 11}));
  EXPECT_EQ(kept.find(Ids{1, 2, 3, 4, 5, 6, 7}, 9), (Ids{10, 11, 12}));  // it is still there
  EXPECT_EQ(kept.find(Ids{1, 2, 3, 9}, 9), (Ids{20, 21}));
}

TEST(PrefixCache, NothingInCommonFindsNothing) {
  PrefixCache kept(2);
  kept.keep(Ids{1, 2, 3, 4}, {10, 11});
  EXPECT_TRUE(kept.find(Ids{2, 2, 3, 4}, 9).empty());
  EXPECT_TRUE(kept.find(Ids{1}, 9).empty());
  EXPECT_TRUE(kept.find(Ids{1, 2, 3, 4}, 0).empty());
  EXPECT_EQ(kept.find(Ids{1, 2, 3, 4}, 1), Ids{10});
}

TEST(PrefixCache, TheTextThatNobodyBeganWithForLongestGivesWayFirst) {
  PrefixCache kept(1);
  kept.keep(Ids{1}, {5});
  kept.keep(Ids{2, 3}, {6, 7});
  kept.keep(Ids{4}, {8});
  kept.keep(Ids{}, {});
  kept.find(Ids{1}, 1);
  EXPECT_EQ(kept.drop_oldest(), (Ids{6, 7}));
  EXPECT_EQ(kept.drop_oldest(), Ids{8});
  EXPECT_EQ(kept.drop_oldest(), Ids{5});
  EXPECT_TRUE(kept.drop_oldest().empty());
}

TEST(PrefixCache, NoTextIsTheBeginningOfAnother) {
  PrefixCache kept(1);
  kept.keep(Ids{1, 2}, {5, 6});
  kept.keep(Ids{1, 3}, {5, 7});
  EXPECT_EQ(kept.keep(Ids{1, 2, 4}, {5, 6, 8}), (Ids{5, 6}));  // the shorter one goes
  EXPECT_EQ(kept.keep(Ids{1, 3}, {9, 10}), (Ids{9, 10}));      // one that is known is not kept again
  EXPECT_EQ(kept.num_texts(), 2);
  EXPECT_EQ(kept.drop_oldest(), (Ids{5, 6, 8})) << "the known one is the newest now";
}

}  // namespace
}  // namespace headrace
