// How much memory this process may still take. Linux hands out more than it has and ends a process that uses it.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>

namespace headrace {

// Bytes: what /proc/meminfo calls available and free swap, or less where a cgroup of this process allows less. Absent
// where the system does not say. `root` is another "/" for tests.
std::optional<int64_t> available_host_memory(const std::filesystem::path& root = "/");

}  // namespace headrace
