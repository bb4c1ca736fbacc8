#include "headrace/base/cgroup.h"

#include "headrace/base/parallel.h"
#include "support/fake_root.h"

namespace headrace {
namespace {

using Cgroup = testing_support::FakeRoot;

TEST_F(Cgroup, NoFilesNoLimit) {
  EXPECT_EQ(own_cgroups(root_), std::vector{root_ / "sys/fs/cgroup"});
  EXPECT_EQ(cpu_quota(root_), std::nullopt);
  EXPECT_GE(available_cores(), 1);
}

TEST_F(Cgroup, AContainersQuotaCountsInCores) {
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/cpu.max", "150000 100000\n");
  EXPECT_EQ(cpu_quota(root_), 1.5);
  write("sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_EQ(cpu_quota(root_), std::nullopt);
}

TEST_F(Cgroup, TheTightestOfNestedGroupsCounts) {
  write("proc/self/cgroup", "12:cpu:/old\n0::/user.slice/me.scope\n");
  write("sys/fs/cgroup/user.slice/me.scope/cpu.max", "800000 100000\n");
  write("sys/fs/cgroup/user.slice/cpu.max", "400000 100000\n");
  EXPECT_EQ(cpu_quota(root_), 4);
}

}  // namespace
}  // namespace headrace
