#include "headrace/pool/req_to_token_pool.h"

#include <gtest/gtest.h>

#include <array>

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

}  // namespace
}  // namespace headrace
