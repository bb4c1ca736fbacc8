// What the containers and services that hold this process allow it.
#pragma once
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

namespace headrace {

// The directories of the control groups that hold this process, the innermost first, the tree's own last; none need
// exist. Of version 2, or of version 1's tree of `controller`, such as "memory". `root` is another "/" for tests.
std::vector<std::filesystem::path> own_cgroups(const std::filesystem::path& root = "/",
                                               std::string_view controller = {});

// Cores' worth of time that they allow this process, above 0; absent where there is no limit.
std::optional<double> cpu_quota(const std::filesystem::path& root = "/");

}  // namespace headrace
