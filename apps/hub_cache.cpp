#include "hub_cache.h"

#include <algorithm>
#include <fstream>
#include <string>

#include "environment.h"
#include "headrace/core/error.h"
#include "headrace/core/file_exists.h"

namespace headrace::app {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFolderPrefix = "models--";

// Returns true if the text can be one part of a path: not empty, and no way out of the cache.
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

// Words with slashes between them; a branch may be called "refs/pr/1".
bool is_path_of_words(std::string_view text) {
  for (size_t slash = text.find('/'); slash != text.npos; slash = text.find('/')) {
    if (!is_word(text.substr(0, slash))) return false;
    text.remove_prefix(slash + 1);
  }
  return is_word(text);
}

// The repository's folder in a cache; repositories of Hugging Face's first years have no owner.
std::optional<std::string> folder_of(std::string_view repository) {
  const size_t slash = repository.find('/');
  if (slash == repository.npos) {
    return is_word(repository) ? std::optional(std::string(kFolderPrefix) + std::string(repository)) : std::nullopt;
  }
  const std::string owner(repository.substr(0, slash)), name(repository.substr(slash + 1));
  if (!is_word(owner) || !is_word(name)) return std::nullopt;
  return std::string(kFolderPrefix) + owner + "--" + name;
}

}  // namespace

bool is_hub_repository(std::string_view name) { return name.find('/') != name.npos && folder_of(name); }

std::vector<fs::path> folders_in(const fs::path& parent) {
  std::vector<fs::path> folders;
  std::error_code ignored;
  for (fs::directory_iterator entry(parent, fs::directory_options::skip_permission_denied, ignored), end; entry != end;
       entry.increment(ignored)) {
    if (entry->is_directory(ignored)) folders.push_back(entry->path());
    if (ignored) break;
  }
  std::ranges::sort(folders);
  return folders;
}

fs::path with_home(std::string_view path) {
  const bool at_home = path == "~" || path.starts_with("~/");
  if (!at_home || variable("HOME").empty()) return path;
  return fs::path(variable("HOME")) / path.substr(std::min<size_t>(2, path.size()));
}

fs::path hub_cache() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (!variable(name).empty()) return with_home(variable(name));
  }
  if (!variable("HF_HOME").empty()) return with_home(variable("HF_HOME")) / "hub";
  if (!variable("XDG_CACHE_HOME").empty()) return with_home(variable("XDG_CACHE_HOME")) / "huggingface" / "hub";
  if (variable("HOME").empty()) return {};
  return fs::path(variable("HOME")) / ".cache" / "huggingface" / "hub";
}

std::optional<fs::path> hub_snapshot(const fs::path& cache, std::string_view repository, std::string_view revision) {
  const auto name = folder_of(repository);
  if (!name || !is_path_of_words(revision)) return std::nullopt;
  const fs::path folder = cache / *name;
  const fs::path reference = folder / "refs" / revision;
  std::error_code ignored;
  if (revision != "main" && fs::is_directory(folder / "snapshots" / revision, ignored)) {
    return folder / "snapshots" / revision;
  }
  const bool named = file_exists(reference) || !file_exists(folder / "snapshots");
  HR_REQUIRE(named || revision == "main", ErrorCode::kModelFile, repository, ": the cache holds no revision '",
             revision, "'; those that it holds are in ", (folder / "snapshots").string());
  HR_REQUIRE(named, ErrorCode::kModelFile, reference.string(),
             ": is missing, as after a download of one revision by its hash; give the directory of a model in ",
             (folder / "snapshots").string());
  if (!file_exists(reference)) return std::nullopt;
  return folder / "snapshots" / hash_in(reference, folder / "snapshots");
}

std::optional<std::string> hub_repository(std::string_view folder) {
  if (!folder.starts_with(kFolderPrefix)) return std::nullopt;
  std::string name(folder.substr(kFolderPrefix.size()));
  const size_t dashes = name.find("--");
  if (dashes != name.npos) name.replace(dashes, 2, "/");
  return folder_of(name) ? std::optional(name) : std::nullopt;
}

std::vector<HubModel> hub_models(const fs::path& cache) {
  std::vector<HubModel> models;
  std::error_code ignored;
  for (const fs::path& folder : folders_in(cache)) {
    const auto name = hub_repository(folder.filename().string());
    if (!name) continue;
    if (fs::exists(folder / "refs" / "main", ignored)) {
      try {
        if (const auto snapshot = hub_snapshot(cache, *name)) models.push_back({*name, *snapshot});
      } catch (const Error&) {  // no usable model; whoever names it is told why
      }
      continue;
    }
    for (const fs::path& snapshot : folders_in(folder / "snapshots")) {
      models.push_back({*name + "@" + snapshot.filename().string(), snapshot});
    }
  }
  return models;
}

}  // namespace headrace::app
