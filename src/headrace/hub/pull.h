// Brings a model from a hub into a cache.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "headrace/hub/hub_client.h"
#include "headrace/hub/hub_download.h"

namespace headrace {

// The size of a model, and of the part that is not here yet.
struct PullPlan {
  HubName name;
  std::string commit;
  std::vector<HubFile> files;
  int64_t bytes = 0, missing_bytes = 0;  // of all files; of what has to be downloaded
};

// Asks the hub. Errors as HubClient::list and model_files; writes nothing.
PullPlan plan_pull(const HubClient& client, const std::filesystem::path& cache, const HubName& name);

// Downloads what is missing, and returns the directory of the model, or its file in GGUF (the first part). The snapshot
// and the branch's note appear when all files are here: until then, readers find the snapshot that they found before.
// Error kIo without enough room on the disk, before anything is downloaded; others as download().
std::filesystem::path pull(const HubClient& client, const std::filesystem::path& cache, const PullPlan& plan,
                           const DownloadCallback& progress);

}  // namespace headrace
