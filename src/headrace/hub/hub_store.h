// A repository's folder in Hugging Face's cache, as it is written. Layout:
//   blobs/ETAG                 contents, named by their hashes; ETAG.incomplete while they are downloaded
//   refs/REVISION              the hash of the commit that a branch or tag meant when it was downloaded
//   snapshots/COMMIT/NAME      relative links to blobs
//   .no_exist/COMMIT/NAME      empty files for what the repository does not have
// and beside the folders of all repositories .locks/FOLDER/ETAG.lock.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/hub/hub_listing.h"

namespace headrace {

// Errors of the functions that write: kIo, with the path and the reason.
class HubStore {
 public:
  // `repository`: a name that hub_folder takes.
  HubStore(std::filesystem::path cache, std::string_view repository);

  const std::filesystem::path& folder() const { return folder_; }
  std::filesystem::path blob(const HubFile& file) const { return folder_ / "blobs" / file.etag; }
  std::filesystem::path incomplete(const HubFile& file) const { return blob(file) += ".incomplete"; }
  std::filesystem::path lock_file(const HubFile& file) const { return locks_ / (file.etag + ".lock"); }
  std::filesystem::path snapshot(const std::string& commit) const { return folder_ / "snapshots" / commit; }

  // Returns true if the file's content is here with its size, as a blob or (where links cannot be made) in the
  // snapshot.
  bool has(const HubFile& file, const std::string& commit) const;
  // Bytes of the file that an earlier download left, at most its size.
  int64_t bytes_left_before(const HubFile& file) const;

  // Creates the folders that downloads go to.
  void create() const;
  // Makes the snapshot of `files`, whose blobs are here. A file system without links has the blobs moved there.
  void link(const std::string& commit, const std::vector<HubFile>& files) const;
  // Notes that `revision` means `commit`, at once for readers. A commit's own hash needs no note.
  void set_reference(const std::string& revision, const std::string& commit) const;
  // Notes that the commit has no such files, so that Hugging Face's tools do not ask for them.
  void note_absent(const std::string& commit, const std::vector<std::string>& names) const;

 private:
  std::filesystem::path cache_, folder_, locks_;
};

}  // namespace headrace
