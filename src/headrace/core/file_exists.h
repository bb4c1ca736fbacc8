#pragma once
#include <filesystem>
#include <system_error>

namespace headrace {

// Whether `path` is there. Where the system cannot say (a name too long, a loop of links, a folder that may not be
// searched) it counts as there: who opens it tells why not.
inline bool file_exists(const std::filesystem::path& path) {
  std::error_code unknown;
  return std::filesystem::exists(path, unknown) || unknown;
}

}  // namespace headrace
