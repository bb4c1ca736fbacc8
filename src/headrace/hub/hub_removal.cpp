#include "headrace/hub/hub_removal.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <system_error>

#include "headrace/core/error.h"
#include "headrace/hub/content_hash.h"
#include "headrace/hub/file_lock.h"
#include "headrace/hub/hub_cache.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;
using Paths = std::set<fs::path>;

// Every file and link below `folder`, which links do not lead out of.
std::vector<fs::path> entries_below(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code ignored;
  for (fs::recursive_directory_iterator entry(folder, ignored), end; !ignored && entry != end;
       entry.increment(ignored)) {
    if (entry->is_symlink(ignored) || !entry->is_directory(ignored)) entries.push_back(entry->path());
  }
  return entries;
}

int64_t size_of(const fs::path& path) {
  std::error_code error;
  if (fs::is_symlink(path, error)) return 0;
  const auto size = fs::file_size(path, error);
  return error ? 0 : static_cast<int64_t>(size);
}

// The target of a link, without following it further.
fs::path target_of(const fs::path& link) {
  std::error_code ignored;
  return (link.parent_path() / fs::read_symlink(link, ignored)).lexically_normal();
}

// The blobs that the snapshot links to.
Paths blobs_of(const fs::path& snapshot) {
  Paths blobs;
  std::error_code ignored;
  for (const fs::path& entry : entries_below(snapshot)) {
    if (fs::is_symlink(entry, ignored)) blobs.insert(target_of(entry));
  }
  return blobs;
}

// Since its version 2, huggingface_hub keeps a file of several repositories once, in blobs/XX/HASH of the cache, and
// links the repositories' blobs to it. HASH.refs lists these links, one a line.
std::optional<fs::path> shared_content(const fs::path& blob, const fs::path& cache) {
  std::error_code ignored;
  if (!fs::is_symlink(blob, ignored)) return std::nullopt;
  const fs::path target = target_of(blob), store = cache / "blobs";
  const bool inside = target.parent_path().parent_path() == store && ContentHash::is_hash(target.filename().string()) &&
                      fs::exists(store / ".huggingface-shared-blobs", ignored);
  return inside ? std::optional(target) : std::nullopt;
}

// Returns true if the list of links is there and none of them stays once `removed` are gone.
bool is_unused_without(const Paths& removed, const fs::path& content, const fs::path& cache) {
  std::ifstream list(content.string() + ".refs");
  if (!list) return false;
  for (std::string line; std::getline(list, line);) {
    const fs::path blob = (cache / line).lexically_normal();
    if (!removed.contains(blob) && shared_content(blob, cache) == content) return false;
  }
  return true;
}

void refuse_while_downloading(const fs::path& cache, const std::string& repository) {
  for (const fs::path& file : entries_below(cache / ".locks" / *hub_folder(repository))) {
    HR_REQUIRE(FileLock::try_lock(file), ErrorCode::kIo, repository,
               ": another process is downloading it; remove it when that has ended");
  }
}

// The notes in refs/ that mean the commit.
std::vector<fs::path> references_to(const std::string& commit, const fs::path& folder) {
  std::vector<fs::path> references;
  for (const fs::path& file : entries_below(folder / "refs")) {
    std::string hash;
    std::ifstream(file) >> hash;
    if (hash == commit) references.push_back(file);
  }
  return references;
}

void take_all(HubRemoval& removal, const fs::path& folder, Paths& blobs) {
  for (const fs::path& snapshot : folders_in(folder / "snapshots")) removal.commits.push_back(snapshot.filename());
  removal.paths = {folder};
  for (const fs::path& entry : entries_below(folder)) removal.bytes += size_of(entry);
  for (const fs::path& blob : entries_below(folder / "blobs")) blobs.insert(blob);
}

void take_snapshot(HubRemoval& removal, const fs::path& folder, const fs::path& snapshot, Paths& blobs) {
  const std::string commit = snapshot.filename();
  removal.commits = {commit};
  removal.paths = {snapshot, folder / ".no_exist" / commit, folder / "trees" / (commit + ".json")};
  std::ranges::copy(references_to(commit, folder), std::back_inserter(removal.paths));
  blobs = blobs_of(snapshot);
  for (const fs::path& other : folders_in(folder / "snapshots")) {
    if (other == snapshot) continue;
    for (const fs::path& used : blobs_of(other)) blobs.erase(used);
  }
  std::erase_if(blobs, [&folder](const fs::path& blob) { return blob.parent_path() != folder / "blobs"; });
  for (const fs::path& entry : entries_below(snapshot)) removal.bytes += size_of(entry);
  for (const fs::path& blob : blobs) {
    removal.bytes += size_of(blob);
    removal.paths.push_back(blob);
  }
}

}  // namespace

std::optional<HubRemoval> plan_removal(const fs::path& given_cache, const std::string& repository,
                                       const std::optional<std::string>& revision) {
  const fs::path cache = fs::absolute(given_cache).lexically_normal();
  const auto name = hub_folder(repository);
  std::error_code ignored;
  if (!name || !fs::is_directory(cache / *name, ignored)) return std::nullopt;
  const fs::path folder = cache / *name;
  refuse_while_downloading(cache, repository);
  HubRemoval removal{.cache = cache, .repository = repository};
  Paths blobs;
  const auto snapshot = revision ? hub_snapshot(cache, repository, *revision) : std::nullopt;
  if (revision && !snapshot) return std::nullopt;
  if (!revision || folders_in(folder / "snapshots").size() <= 1) {
    take_all(removal, folder, blobs);
  } else {
    take_snapshot(removal, folder, *snapshot, blobs);
  }
  Paths shared;
  for (const fs::path& blob : blobs) {
    const auto content = shared_content(blob, cache);
    if (content && is_unused_without(blobs, *content, cache) && shared.insert(*content).second)
      removal.bytes += size_of(*content);
  }
  removal.shared.assign(shared.begin(), shared.end());
  return removal;
}

void remove(const HubRemoval& removal) {
  for (const fs::path& path : removal.paths) {
    std::error_code error;
    fs::remove_all(path, error);
    HR_REQUIRE(!error, ErrorCode::kIo, path.string(), ": cannot be removed: ", error.message());
  }
  for (const fs::path& content : removal.shared) {
    const auto lock = FileLock::try_lock(content.string() + ".lock");
    if (!lock || !is_unused_without({}, content, removal.cache)) continue;  // another repository links to it by now
    std::error_code ignored;
    fs::remove(content, ignored);
    fs::remove(content.string() + ".refs", ignored);
  }
}

}  // namespace headrace
