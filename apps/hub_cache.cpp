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

// The hash in a file of refs/. Error kModelFile where it holds none, or `snapshots` has none of that name: there is a
// model then, and the user can name its directory.
std::string hash_in(const fs::path& reference, const fs::path& snapshots) {
  const std::string advice = "; download the model again, or give the directory of a model in " + snapshots.string();
  std::error_code error;
  const fs::file_status status = fs::status(reference, error);
  HR_REQUIRE(!error, ErrorCode::kModelFile, reference.string(), ": cannot be read: ", error.message(), advice);
  HR_REQUIRE(fs::is_regular_file(status), ErrorCode::kModelFile, reference.string(), ": is ",
             fs::is_directory(status) ? "a directory" : "no regular file",
             ", expected a file with the hash of a snapshot", advice);
  std::string hash;
  std::ifstream(reference) >> hash;
  HR_REQUIRE(is_word(hash), ErrorCode::kModelFile, reference.string(),
             hash.empty() ? ": is empty" : ": holds no name of a folder", ", expected the hash of a snapshot", advice);
  HR_REQUIRE(fs::is_directory(snapshots / hash, error), ErrorCode::kModelFile, reference.string(),
             ": names the snapshot ", hash, ", which is not there", advice);
  return hash;
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
  if (!file_exists(main)) return std::nullopt;
  return folder / "snapshots" / hash_in(main, folder / "snapshots");
}

}  // namespace headrace::app
