#include "headrace/core/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <fstream>

#include "support/refusal.h"

namespace headrace {
namespace {

TEST(MappedFile, no_room_for_it_was_a_fault_of_the_file) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers take more of the address space than this limit";
#endif
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / "headrace_no_room";
  std::ofstream(path).close();
  std::filesystem::resize_file(path, uint64_t{1} << 40);  // without a block on the disk
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  const rlimit tight{.rlim_cur = rlim_t{1} << 36, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &tight), 0);
  const auto refused = testing_support::refusal_of([&] { MappedFile(OpenFile(path), nullptr); });
  setrlimit(RLIMIT_AS, &before);
  std::filesystem::remove(path);
  EXPECT_EQ(refused.code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(refused.sentence, path.string() + ": mapping 1099511627776 bytes failed: Cannot allocate memory");
}

}  // namespace
}  // namespace headrace
