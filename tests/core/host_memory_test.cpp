#include "headrace/core/host_memory.h"

#include <gtest/gtest.h>

#include "headrace/core/device_runtime.h"
#include "support/fake_root.h"
#include "support/refusal.h"

namespace headrace {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

class HostMemory : public testing_support::FakeRoot {
 protected:
  void machine() {  // 8 GiB available, 1 GiB of free swap
    write("proc/meminfo",
          "MemTotal: 16777216 kB\nMemFree: 4194304 kB\nMemAvailable:    8388608 kB\nSwapFree: 1048576 kB\n");
  }
};

TEST_F(HostMemory, WhatIsAvailableAndFreeSwap) {
  machine();
  EXPECT_EQ(available_host_memory(root_), 9 * kGiB);
}

TEST_F(HostMemory, UnknownWhereTheSystemDoesNotSay) { EXPECT_EQ(available_host_memory(root_), std::nullopt); }

TEST_F(HostMemory, AContainerMayAllowLess) {
  machine();
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/memory.max", "4294967296\n");
  write("sys/fs/cgroup/memory.current", "3221225472\n");
  write("sys/fs/cgroup/memory.stat", "anon 1\ninactive_file 1073741824\nactive_file 536870912\n");
  write("sys/fs/cgroup/memory.swap.max", "0\n");
  EXPECT_EQ(available_host_memory(root_), kGiB + kGiB + kGiB / 2) << "its page cache gives way";
  write("sys/fs/cgroup/memory.swap.max", "max\n");
  EXPECT_EQ(available_host_memory(root_), 3 * kGiB + kGiB / 2);
  write("sys/fs/cgroup/memory.max", "max\n");
  EXPECT_EQ(available_host_memory(root_), 9 * kGiB);
}

TEST_F(HostMemory, AnOuterGroupMayAllowLessThanTheInnerOne) {
  machine();
  write("proc/self/cgroup", "12:memory:/old\n0::/user.slice/me.scope\n");
  write("sys/fs/cgroup/user.slice/memory.max", "2147483648\n");
  write("sys/fs/cgroup/user.slice/memory.swap.max", "0\n");
  write("sys/fs/cgroup/user.slice/me.scope/memory.max", "6442450944\n");
  EXPECT_EQ(available_host_memory(root_), 2 * kGiB);
}

TEST_F(HostMemory, AContainerOfVersionOneMayAllowLess) {
  machine();
  write("proc/self/cgroup", "4:memory:/box\n");
  const std::string box = "sys/fs/cgroup/memory/box/";
  write(box + "memory.limit_in_bytes", "4294967296\n");
  write(box + "memory.usage_in_bytes", "3221225472\n");
  write(box + "memory.stat", "cache 5\ninactive_file 7\ntotal_inactive_file 1073741824\ntotal_active_file 536870912\n");
  EXPECT_EQ(available_host_memory(root_), 3 * kGiB + kGiB / 2);
  write(box + "memory.memsw.limit_in_bytes", "4294967296\n");
  write(box + "memory.memsw.usage_in_bytes", "3221225472\n");
  EXPECT_EQ(available_host_memory(root_), 2 * kGiB + kGiB / 2) << "no swap";
  write(box + "memory.limit_in_bytes", "9223372036854771712\n");
  write(box + "memory.memsw.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(available_host_memory(root_), 9 * kGiB) << "no limit";
}

// Weights that do not fit would be filled until Linux ends the program.
TEST(MemoryOfTheHost, IsRefusedWhereNotSoMuchIsAvailable) {
  if (!available_host_memory()) GTEST_SKIP() << "this system does not say what is available";
  const auto refused = testing_support::refusal_of([] { cpu_runtime().allocate(size_t{1} << 50); });  // a pebibyte
  EXPECT_EQ(refused.code, ErrorCode::kOutOfMemory);
  EXPECT_TRUE(refused.sentence.starts_with("cpu: could not allocate 1.1 PB; ")) << refused.sentence;
  EXPECT_TRUE(refused.sentence.ends_with(" are left, and 67.1 MB stay free")) << refused.sentence;
}

}  // namespace
}  // namespace headrace
