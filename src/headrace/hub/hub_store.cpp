#include "headrace/hub/hub_store.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <system_error>

#include "headrace/core/error.h"
#include "headrace/hub/hub_name.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;

void require_written(const std::error_code& error, const fs::path& path) {
  HR_REQUIRE(!error, ErrorCode::kIo, path.string(), ": cannot be written: ", error.message(),
             "; HF_HUB_CACHE names another folder for models");
}

void create_folders(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  require_written(error, path);
}

void write_whole(const fs::path& path, std::string_view text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  if (!out) require_written(std::make_error_code(std::errc::io_error), path);
}

bool has_size(const fs::path& path, int64_t size) {
  std::error_code error;
  const auto found = fs::file_size(path, error);
  return !error && found == static_cast<uintmax_t>(size);
}

// "../../blobs/ETAG" of a file at the snapshot's top.
fs::path relative_blob(const HubFile& file) {
  fs::path up = fs::path("..") / "..";
  for (const char c : file.name) {
    if (c == '/') up /= "..";
  }
  return up / "blobs" / file.etag;
}

}  // namespace

HubStore::HubStore(fs::path cache, std::string_view repository) : cache_(std::move(cache)) {
  const auto name = hub_folder(repository);
  HR_REQUIRE(name, ErrorCode::kInvalidArgument, repository, ": is no name of a model on a hub, expected ORG/NAME");
  folder_ = cache_ / *name;
  locks_ = cache_ / ".locks" / *name;
}

bool HubStore::has(const HubFile& file, const std::string& commit) const {
  return has_size(blob(file), file.size) || has_size(snapshot(commit) / file.name, file.size);
}

int64_t HubStore::bytes_left_before(const HubFile& file) const {
  std::error_code error;
  const auto size = fs::file_size(incomplete(file), error);
  return error ? 0 : std::min<int64_t>(static_cast<int64_t>(size), file.size);
}

void HubStore::create() const {
  create_folders(folder_ / "blobs");
  create_folders(locks_);
}

void HubStore::link(const std::string& commit, const std::vector<HubFile>& files) const {
  for (const HubFile& file : files) {
    const fs::path place = snapshot(commit) / file.name;
    if (has_size(place, file.size)) continue;
    create_folders(place.parent_path());
    std::error_code error;
    fs::remove(place, error);
    fs::create_symlink(relative_blob(file), place, error);
    const bool unlinkable = error == std::errc::operation_not_permitted || error == std::errc::not_supported ||
                            error == std::errc::operation_not_supported || error == std::errc::function_not_supported;
    if (unlinkable) fs::rename(blob(file), place, error);
    require_written(error, place);
  }
}

void HubStore::set_reference(const std::string& revision, const std::string& commit) const {
  if (revision == commit) return;
  const fs::path path = folder_ / "refs" / revision;
  fs::path written = path;
  written += "." + std::to_string(getpid()) + ".tmp";
  create_folders(path.parent_path());
  write_whole(written, commit);
  std::error_code error;
  fs::rename(written, path, error);
  require_written(error, path);
}

void HubStore::note_absent(const std::string& commit, const std::vector<std::string>& names) const {
  const fs::path folder = folder_ / ".no_exist" / commit;
  if (!names.empty()) create_folders(folder);
  for (const std::string& name : names) write_whole(folder / name, "");
}

}  // namespace headrace
