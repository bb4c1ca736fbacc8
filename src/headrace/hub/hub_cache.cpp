#include "headrace/hub/hub_cache.h"

#include <algorithm>
#include <fstream>
#include <string>

#include "headrace/core/error.h"
#include "headrace/core/file_exists.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;

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
  HR_REQUIRE(is_hub_word(hash), ErrorCode::kModelFile, reference.string(),
             hash.empty() ? ": is empty" : ": holds no name of a folder", ", expected the hash of a snapshot", advice);
  HR_REQUIRE(fs::is_directory(snapshots / hash, error), ErrorCode::kModelFile, reference.string(),
             ": names the snapshot ", hash, ", which is not there", advice);
  return hash;
}

}  // namespace

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

std::optional<fs::path> hub_snapshot(const fs::path& cache, std::string_view repository, std::string_view revision) {
  const auto name = hub_folder(repository);
  if (!name || !is_hub_revision(revision)) return std::nullopt;
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

std::vector<GgufChoice> gguf_choices_in(const fs::path& snapshot) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(snapshot, error), end; !error && entry != end; entry.increment(error))
    names.push_back(entry->path().lexically_relative(snapshot).generic_string());
  return gguf_choices(std::move(names));
}

std::optional<fs::path> hub_model(const fs::path& cache, const HubName& name) {
  auto snapshot = hub_snapshot(cache, name.repository, name.revision);
  if (!snapshot || name.gguf.empty()) return snapshot;
  const std::vector<GgufChoice> choices = gguf_choices_in(*snapshot);
  if (!has_gguf(choices, name.gguf)) return std::nullopt;
  return *snapshot / choose_gguf(choices, name.gguf, name.repository).names.front();
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

}  // namespace headrace
