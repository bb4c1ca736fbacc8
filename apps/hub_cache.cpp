#include "hub_cache.h"

#include <algorithm>
#include <fstream>
#include <string>

#include "environment.h"
#include "headrace/base/error.h"
#include "headrace/base/file_exists.h"

namespace headrace::app {
namespace {

namespace fs = std::filesystem;

// What may be one part of a path: neither empty nor a way out of the cache.
bool is_word(std::string_view text) {
  return !text.empty() && !text.starts_with('.') && text.find("..") == text.npos &&
         text.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") == text.npos;
}

}  // namespace

fs::path hub_cache() {
  if (!variable("HF_HUB_CACHE").empty()) return variable("HF_HUB_CACHE");
  if (!variable("HF_HOME").empty()) return fs::path(variable("HF_HOME")) / "hub";
  if (!variable("XDG_CACHE_HOME").empty()) return fs::path(variable("XDG_CACHE_HOME")) / "huggingface" / "hub";
  if (variable("HOME").empty()) return {};
  return fs::path(variable("HOME")) / ".cache" / "huggingface" / "hub";
}

std::optional<fs::path> hub_snapshot(const fs::path& cache, std::string_view repository) {
  const size_t slash = repository.find('/');
  if (slash == repository.npos) return std::nullopt;
  const std::string owner(repository.substr(0, slash)), name(repository.substr(slash + 1));
  if (!is_word(owner) || !is_word(name)) return std::nullopt;

  const fs::path folder = cache / ("models--" + owner + "--" + name);
  const fs::path main = folder / "refs" / "main";
  HR_REQUIRE(file_exists(main) || !file_exists(folder / "snapshots"), ErrorCode::kModelFile, main.string(),
             ": is missing, as after a download of one revision by its hash; give the directory of a model in ",
             (folder / "snapshots").string());
  std::ifstream in(main);
  std::string revision;
  if (!(in >> revision) || !is_word(revision)) return std::nullopt;
  fs::path snapshot = folder / "snapshots" / revision;
  std::error_code ignored;
  if (!fs::is_directory(snapshot, ignored)) return std::nullopt;
  return snapshot;
}

}  // namespace headrace::app
