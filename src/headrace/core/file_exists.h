#pragma once
#include <filesystem>
#include <system_error>

namespace headrace {

// Returns true if `path` exists. Also returns true if the system cannot say (name too long, symlink loop, unreadable
// folder): opening the file then reports the reason.
inline bool file_exists(const std::filesystem::path& path) {
  std::error_code unknown;
  return std::filesystem::exists(path, unknown) || unknown;
}

}  // namespace headrace
