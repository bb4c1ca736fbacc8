// Limits of the control groups (containers, services) of this process.
#pragma once
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

namespace headrace {

// Returns the directories of this process's control groups, innermost first, root of the tree last; none need exist.
// Version 2, or version 1's tree of `controller`, such as "memory". `root` replaces "/" in tests.
std::vector<std::filesystem::path> own_cgroups(const std::filesystem::path& root = "/",
                                               std::string_view controller = {});

// Returns the CPU quota of this process in cores, above 0; absent without a limit.
std::optional<double> cpu_quota(const std::filesystem::path& root = "/");

}  // namespace headrace
