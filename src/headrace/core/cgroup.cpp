#include "headrace/core/cgroup.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

#include "headrace/core/error.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;

bool lists(const std::string& commas, std::string_view word) {
  return str(',', commas, ',').find(str(',', word, ',')) != std::string::npos;
}

// Mount point of a cgroup tree, or of its part below `top`.
struct Mount {
  fs::path top, point;
};

Mount mount_of(const fs::path& root, std::string_view controller) {
  std::ifstream in(root / "proc/self/mountinfo");
  for (std::string line; std::getline(in, line);) {
    const size_t end = line.find(" - ");  // after a variable number of fields
    if (end == line.npos) continue;
    std::istringstream begins(line.substr(0, end)), ends(line.substr(end + 3));
    std::string id, parent, device, top, point, type, source, options;
    if (!(begins >> id >> parent >> device >> top >> point) || !(ends >> type >> source >> options)) continue;
    if (controller.empty() ? type == "cgroup2" : type == "cgroup" && lists(options, controller)) return {top, point};
  }
  const fs::path usual = "/sys/fs/cgroup";
  return {"/", controller.empty() ? usual : usual / controller};
}

fs::path group_of(const fs::path& root, std::string_view controller) {
  std::ifstream in(root / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {  // "NUMBER:CONTROLLERS:/GROUP"; version 2 has no controllers
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (controller.empty() ? line.starts_with("0::") : lists(controllers, controller)) return line.substr(second + 1);
  }
  return "/";
}

std::optional<double> number_in(const fs::path& file) {
  std::ifstream in(file);
  double number = 0;
  return in >> number ? std::optional(number) : std::nullopt;
}

// Quota in cores; 0 or less: no limit.
double quota_of_version_1(const fs::path& group) {
  return number_in(group / "cpu.cfs_quota_us").value_or(-1) / number_in(group / "cpu.cfs_period_us").value_or(1);
}

double quota_of_version_2(const fs::path& group) {
  std::ifstream in(group / "cpu.max");  // "QUOTA PERIOD", or "max PERIOD"
  double quota = 0, period = 0;
  return in >> quota >> period ? quota / period : -1;
}

}  // namespace

std::vector<fs::path> own_cgroups(const fs::path& root, std::string_view controller) {
  const Mount mount = mount_of(root, controller);
  const fs::path tree = root / mount.point.relative_path();
  fs::path below = group_of(root, controller).lexically_relative(mount.top);
  if (below.begin() != below.end() && *below.begin() == "..") below.clear();  // the group is not mounted here
  std::vector<fs::path> groups;
  for (; !below.empty() && below != "."; below = below.parent_path()) groups.push_back(tree / below);
  groups.push_back(tree);
  return groups;
}

std::optional<double> cpu_quota(const fs::path& root) {
  double least = std::numeric_limits<double>::infinity();
  const auto allow = [&least](double quota) {
    if (quota > 0) least = std::min(least, quota);
  };
  for (const fs::path& group : own_cgroups(root)) allow(quota_of_version_2(group));
  for (const fs::path& group : own_cgroups(root, "cpu")) allow(quota_of_version_1(group));
  return least < std::numeric_limits<double>::infinity() ? std::optional(least) : std::nullopt;
}

}  // namespace headrace
