#include "headrace/base/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "headrace/base/error.h"

namespace headrace {
namespace {

TEST(ParallelFor, RunsEveryIndexOnce) {
  std::vector<std::atomic<int>> seen(1000);
  parallel_for(4, 1000, [&](int64_t i) { ++seen[static_cast<size_t>(i)]; });
  for (const auto& count : seen) EXPECT_EQ(count, 1);
}

TEST(ParallelFor, ThrowsWhatABodyThrew) {
  EXPECT_THROW(parallel_for(2, 8, [](int64_t i) { HR_REQUIRE(i != 5, ErrorCode::kIo, "five"); }), Error);
}

}  // namespace
}  // namespace headrace
