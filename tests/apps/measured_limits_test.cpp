// What `headrace bench` counts a share against; rates themselves are no test.
#include "bench/measured_limits.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

namespace headrace {
namespace {

int64_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * int64_t{1024};
}

// `zeros_that_were_never_there`: pages that nobody wrote are one and the same, and a read limit over them is a cache's.
TEST(MeasuredLimits, ReadMemoryThatIsThere) {
  constexpr int64_t kBytes = int64_t{256} << 20;
  const int64_t before = peak_resident_bytes();
  EXPECT_GT(bench::read_bandwidth(2, kBytes), 0);
  EXPECT_GE(peak_resident_bytes() - before, kBytes / 10 * 9);
}

}  // namespace
}  // namespace headrace
