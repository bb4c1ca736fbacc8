#include "headrace/core/cgroup.h"

#include "headrace/core/parallel.h"
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

TEST_F(Cgroup, VersionOneHasATreeToEachController) {
  write("proc/self/cgroup", "4:memory:/elsewhere\n2:cpu,cpuacct:/docker/box/job\n0::/\n");
  write("proc/self/mountinfo",
        "24 1 0:30 / / rw - ext4 /dev/vda rw\n"
        "33 24 0:29 / /cgroups/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n");
  EXPECT_EQ(own_cgroups(root_, "cpu"),
            (std::vector{root_ / "cgroups/cpu,cpuacct/docker/box/job", root_ / "cgroups/cpu,cpuacct/docker/box",
                         root_ / "cgroups/cpu,cpuacct/docker", root_ / "cgroups/cpu,cpuacct"}));
  write("cgroups/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  write("cgroups/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cpu_quota(root_), std::nullopt);
  write("cgroups/cpu,cpuacct/docker/box/cpu.cfs_quota_us", "50000\n");
  write("cgroups/cpu,cpuacct/docker/box/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cpu_quota(root_), 0.5);
}

TEST_F(Cgroup, AContainerSeesItsOwnPartOfATree) {
  write("proc/self/cgroup", "2:cpu:/docker/box\n");
  write("proc/self/mountinfo", "33 24 0:29 /docker/box /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n");
  EXPECT_EQ(own_cgroups(root_, "cpu"), std::vector{root_ / "sys/fs/cgroup/cpu"});
  write("proc/self/cgroup", "2:cpu:/other\n");
  EXPECT_EQ(own_cgroups(root_, "cpu"), std::vector{root_ / "sys/fs/cgroup/cpu"}) << "which is not mounted";
}

TEST_F(Cgroup, VersionTwoMayBeMountedBesideVersionOne) {
  write("proc/self/cgroup", "2:cpu:/\n0::/me\n");
  write("proc/self/mountinfo", "41 24 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  write("sys/fs/cgroup/unified/me/cpu.max", "300000 100000\n");
  EXPECT_EQ(cpu_quota(root_), 3);
}

}  // namespace
}  // namespace headrace
