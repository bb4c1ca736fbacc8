#include "headrace/base/cgroup.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace headrace {

std::vector<std::filesystem::path> own_cgroups(const std::filesystem::path& root) {
  const std::filesystem::path tree = root / "sys/fs/cgroup";
  std::filesystem::path group;  // in a container that has a tree of its own: this one
  std::ifstream in(root / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("0::/")) group = line.substr(4);
  }
  std::vector<std::filesystem::path> groups;
  for (; !group.empty(); group = group.parent_path()) groups.push_back(tree / group);
  groups.push_back(tree);
  return groups;
}

std::optional<double> cpu_quota(const std::filesystem::path& root) {
  std::optional<double> least;
  for (const std::filesystem::path& group : own_cgroups(root)) {
    std::ifstream in(group / "cpu.max");  // "QUOTA PERIOD", or "max PERIOD"
    double quota = 0, period = 0;
    if (in >> quota >> period && quota > 0 && period > 0)
      least = std::min(least.value_or(quota / period), quota / period);
  }
  return least;
}

}  // namespace headrace
