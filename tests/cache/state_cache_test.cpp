#include "headrace/cache/state_cache.h"

#include <gtest/gtest.h>

#include "headrace/core/error.h"

namespace headrace {
namespace {

using Ids = std::vector<int32_t>;

TEST(StateCache, TheLongestBeginningIsFound) {
  StateCache kept;
  EXPECT_FALSE(kept.find(Ids{1, 2}));
  kept.keep(Ids{1, 2, 3, 4}, 7);
  kept.keep(Ids{1, 2}, 8);
  kept.keep(Ids{1, 2, 9}, 9);
  EXPECT_EQ(kept.find(Ids{1, 2, 3, 4, 5})->slot, 7);
  EXPECT_EQ(kept.find(Ids{1, 2, 3, 4})->num_tokens, 4);
  EXPECT_EQ(kept.find(Ids{1, 2, 3, 5})->slot, 8);  // a state is that of all its tokens
  EXPECT_EQ(kept.find(Ids{1, 2, 3})->num_tokens, 2);
  EXPECT_FALSE(kept.find(Ids{1}));
  EXPECT_FALSE(kept.find(Ids{2, 2, 3, 4}));
}

TEST(StateCache, TheOneThatNobodyUsedForLongestGivesWayFirst) {
  StateCache kept;
  for (int32_t i = 1; i <= 4; ++i) kept.keep(Ids{i}, 10 + i);
  EXPECT_EQ(kept.find(Ids{1, 1})->slot, 11);
  EXPECT_TRUE(kept.knows(Ids{2}));
  EXPECT_FALSE(kept.knows(Ids{2, 2}));
  for (const int32_t slot : {13, 14, 11, 12}) EXPECT_EQ(kept.drop_oldest(), slot);
  EXPECT_FALSE(kept.drop_oldest());
  EXPECT_EQ(kept.size(), 0);
}

TEST(StateCache, ABeginningIsKeptOnce) {
  StateCache kept;
  kept.keep(Ids{1}, 2);
  EXPECT_THROW(kept.keep(Ids{1}, 3), Error);
}

}  // namespace
}  // namespace headrace
