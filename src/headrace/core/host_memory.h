// Memory that this process may still allocate. Linux overcommits and kills a process that uses too much.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>

namespace headrace {

// Returns bytes: MemAvailable plus SwapFree of /proc/meminfo, or less if a cgroup of this process allows less. Absent
// if the system does not say. `root` replaces "/" in tests.
std::optional<int64_t> available_host_memory(const std::filesystem::path& root = "/");

}  // namespace headrace
