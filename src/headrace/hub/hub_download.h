// Downloads files of a repository into a cache, several at once.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "headrace/hub/hub_client.h"
#include "headrace/hub/hub_store.h"

namespace headrace {

struct DownloadProgress {
  int64_t bytes = 0, total = 0;  // of all files; bytes that an earlier download left count
  int32_t files = 0;             // that are complete
};
using DownloadCallback = std::function<void(const DownloadProgress&)>;

// Makes a blob of each of `files` that is none yet, and checks its size and hash. Part of a file is kept in
// blobs/ETAG.incomplete, at any end of the process too, and the next download goes on behind it. Where another process
// downloads a file, this one waits for it. `progress` is called about ten times per second, on the calling thread; it
// may throw to end the download. Errors: as HubClient::list; kIo for a full disk; kModelFile for contents that differ
// from what the hub promised, twice.
void download(const HubClient& client, const HubStore& store, const HubName& name, const std::string& commit,
              const std::vector<HubFile>& files, const DownloadCallback& progress);

}  // namespace headrace
