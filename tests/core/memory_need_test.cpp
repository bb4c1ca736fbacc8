#include "headrace/core/memory_need.h"

#include <gtest/gtest.h>

#include "support/refusal.h"

namespace headrace {
namespace {

using testing_support::refusal_of;

TEST(MemoryNeed, SaysWhatIsNeededWhatIsThereAndWhatToTry) {
  const auto full = []() -> int { throw Error(ErrorCode::kOutOfMemory, "cuda:0: 7 of 9 are free"); };
  const auto known = refusal_of([&] { with_need({.what = "a table", .bytes = 51712, .advice = "fewer rows"}, full); });
  EXPECT_EQ(known.code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(known.sentence, "a table needs 51.7 kB: cuda:0: 7 of 9 are free; try fewer rows");
  const auto open = refusal_of([&] { with_need({.what = "a table", .advice = "fewer rows"}, full); });
  EXPECT_EQ(open.sentence, "a table: cuda:0: 7 of 9 are free; try fewer rows");
}

TEST(MemoryNeed, LeavesResultsAndOtherErrorsAlone) {
  int there = 3;
  EXPECT_EQ(&with_need({.what = "a table", .advice = "fewer rows"}, [&]() -> int& { return there; }), &there);
  const auto refused = refusal_of(
      [] { with_need({.what = "a table", .advice = "fewer rows"}, [] { throw Error(ErrorCode::kCuda, "a fault"); }); });
  EXPECT_EQ(refused.code, ErrorCode::kCuda);
  EXPECT_EQ(refused.sentence, "a fault");
}

}  // namespace
}  // namespace headrace
