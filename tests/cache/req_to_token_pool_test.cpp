#include "headrace/cache/req_to_token_pool.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>

#include "support/refusal.h"

namespace headrace {
namespace {

TEST(ReqToTokenPool, RowsStartAtOneAndAFreedRowForgetsItsPages) {
  ReqToTokenPool pool(2, 64, 16);
  EXPECT_EQ(pool.alloc(), 1);
  pool.write(1, 0, std::array{7, 9});
  EXPECT_EQ(pool.slot_of(1, 17), 9 * 16 + 1);
  pool.free(1);
  EXPECT_EQ(pool.alloc(), 1);
  EXPECT_EQ(pool.slot_of(1, 17), 1);  // page 0: the reserved one
}

TEST(ReqToTokenPool, FullPoolAnswersNullopt) {
  ReqToTokenPool pool(1, 16, 16);
  EXPECT_TRUE(pool.alloc());
  EXPECT_FALSE(pool.alloc());
}

TEST(ReqToTokenPool, RefusesPositionsAndRowsOutsideTheTable) {
  ReqToTokenPool pool(2, 60, 16);
  EXPECT_THROW(pool.write(1, 3, std::array{1, 2}), Error);
  EXPECT_THROW(pool.write(0, 0, std::array{1}), Error);
  EXPECT_THROW(static_cast<void>(pool.slot_of(1, 64)), Error);
  EXPECT_THROW(pool.set_state_slot(3, 1), Error);
}

TEST(ReqToTokenPool, RefusesPagesThatTheKVPoolDoesNotHave) {
  ReqToTokenPool pool(1, 48, 16, 9);
  EXPECT_EQ(pool.pages_below(), 10);
  pool.write(1, 0, std::array{0, 9});
  const auto versions = pool.row_versions().as<const int64_t, 1>("versions");
  const int64_t version = versions(1);
  for (const int32_t page : {-1, 10}) {
    const auto refused = testing_support::refusal_of([&] { pool.write(1, 0, std::array{5, page}); });
    EXPECT_EQ(refused.code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(refused.sentence, str("request row 1: page ", page, " is no page of the pool, expected 0 to 9"));
  }
  EXPECT_EQ(pool.slot_of(1, 16), 9 * 16) << "a refused call changed the row";
  EXPECT_EQ(pool.slot_of(1, 0), 0);
  EXPECT_EQ(versions(1), version);
}

TEST(ReqToTokenPool, EveryChangeOfARowGivesItAVersionThatNoRowHadBefore) {
  ReqToTokenPool pool(2, 64, 16);
  const auto versions = pool.row_versions().as<const int64_t, 1>("versions");
  std::set<int64_t> seen = {versions(1), versions(2)};
  const auto expect_change = [&](int32_t row, const std::string& by) {
    const int64_t other = versions(3 - row);
    EXPECT_TRUE(seen.insert(versions(row)).second) << by;
    EXPECT_EQ(versions(3 - row), other) << by;
  };
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(pool.alloc(), 1);
    EXPECT_EQ(pool.alloc(), 2);
    for (const int32_t row : {2, 1}) {
      pool.write(row, 0, std::array{7, 9});
      expect_change(row, "write");
      pool.write(row, 1, std::array{9});
      expect_change(row, "write of the same");
      pool.free(row);
      expect_change(row, "free");
    }
  }
}

// After any sequence of calls a row is free or one request's, and holds that request's pages and state alone.
RC_GTEST_PROP(ReqToTokenPool, EveryRowIsFreeOrOwnedExactlyOnceAndShowsItsOwnersPages, ()) {
  constexpr int32_t kPages = 3, kPageSize = 16;
  const int32_t rows = *rc::gen::inRange(1, 9);
  ReqToTokenPool pool(rows, kPages * kPageSize, kPageSize);
  std::map<int32_t, int32_t> owned;  // row, what its request wrote
  for (const int32_t call : *rc::gen::container<std::vector<int32_t>>(rc::gen::inRange(-9, 20))) {
    if (call >= 0) {
      const auto row = pool.alloc();
      RC_ASSERT(row.has_value() == (static_cast<int32_t>(owned.size()) < rows));
      if (!row) continue;
      RC_ASSERT(*row >= 1 && *row <= rows);
      RC_ASSERT(owned.emplace(*row, call + 1).second);
      pool.write(*row, call % kPages, std::array{call + 1});
      pool.set_state_slot(*row, call + 1);
    } else if (owned.contains(-call)) {
      pool.free(-call);
      owned.erase(-call);
    } else {
      RC_ASSERT_THROWS_AS(pool.free(-call), Error);
    }
    RC_ASSERT(pool.available_size() == rows - static_cast<int32_t>(owned.size()));
    for (int32_t row = 0; row <= rows; ++row) {
      const int32_t wrote = owned.contains(row) ? owned[row] : 0;  // 0: the reserved page and state
      RC_ASSERT(element_as_double(pool.state_slots(), row) == wrote);
      for (int32_t page = 0; page < kPages; ++page) {
        const bool here = wrote > 0 && page == (wrote - 1) % kPages;
        RC_ASSERT(element_as_double(pool.page_table(), row * kPages + page) == (here ? wrote : 0));
      }
    }
  }
}

}  // namespace
}  // namespace headrace
