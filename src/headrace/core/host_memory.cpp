#include "headrace/core/host_memory.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>

#include "headrace/core/cgroup.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;

// Returns the number after `name` in a file of "name number" lines.
std::optional<int64_t> field(const fs::path& file, std::string_view name) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(name) && line.size() > name.size())
      return std::strtoll(line.c_str() + name.size(), nullptr, 10);
  }
  return std::nullopt;
}

// Returns the only word of a file as a number; "max" means no limit.
int64_t limit(const fs::path& file) {
  std::ifstream in(file);
  int64_t value = 0;
  return in >> value ? value : std::numeric_limits<int64_t>::max();
}

int64_t count(const fs::path& file) { return field(file, "").value_or(0); }

// Returns the bytes that the version 1 `group` still allows.
int64_t left_in_version_1(const fs::path& group, int64_t swap_free) {
  constexpr int64_t kNone = int64_t{1} << 62;  // limits above this mean no limit
  const fs::path stat = group / "memory.stat";
  const int64_t cache = field(stat, "total_inactive_file ").value_or(0) + field(stat, "total_active_file ").value_or(0);
  const int64_t most = limit(group / "memory.limit_in_bytes"), both = limit(group / "memory.memsw.limit_in_bytes");
  int64_t left = kNone;
  if (most < kNone) left = most - count(group / "memory.usage_in_bytes") + cache + swap_free;
  if (both < kNone) left = std::min(left, both - count(group / "memory.memsw.usage_in_bytes") + cache);
  return left;
}

// Returns the bytes that the version 2 `group` still allows. Its page cache is reclaimable.
int64_t left_in(const fs::path& group, int64_t swap_free) {
  const int64_t most = limit(group / "memory.max");
  if (most == std::numeric_limits<int64_t>::max()) return most;
  const int64_t swap = std::min(swap_free, limit(group / "memory.swap.max") - count(group / "memory.swap.current"));
  const fs::path stat = group / "memory.stat";
  const int64_t cache = field(stat, "inactive_file ").value_or(0) + field(stat, "active_file ").value_or(0);
  return most - count(group / "memory.current") + cache + swap;
}

}  // namespace

std::optional<int64_t> available_host_memory(const fs::path& root) {
  constexpr int64_t kKilo = 1024;
  const fs::path meminfo = root / "proc/meminfo";
  const auto available = field(meminfo, "MemAvailable:");
  if (!available) return std::nullopt;
  const int64_t swap = field(meminfo, "SwapFree:").value_or(0) * kKilo;
  int64_t left = *available * kKilo + swap;
  for (const fs::path& group : own_cgroups(root)) left = std::min(left, left_in(group, swap));
  for (const fs::path& group : own_cgroups(root, "memory")) left = std::min(left, left_in_version_1(group, swap));
  return std::max<int64_t>(0, left);
}

}  // namespace headrace
