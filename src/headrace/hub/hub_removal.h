// Removes models from Hugging Face's cache.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "headrace/hub/hub_name.h"

namespace headrace {

// The files and folders that a removal takes away. Paths are of the cache.
struct HubRemoval {
  std::filesystem::path cache;
  std::string repository;
  std::vector<std::string> commits;  // whose snapshots go
  std::vector<std::filesystem::path>
      paths;  // files and folders; the repository's whole folder, where no snapshot stays
  std::vector<std::filesystem::path> shared;  // contents that huggingface_hub keeps once for several repositories
  int64_t bytes = 0;                          // that the disk gets back
};

// Plans the removal of all snapshots of `repository`, or of the one that `revision` names. Of the blobs only those go
// that no other snapshot links to. Returns nothing where the cache does not hold it. Errors: kModelFile as
// hub_snapshot; kIo while another process downloads the model.
std::optional<HubRemoval> plan_removal(const std::filesystem::path& cache, const std::string& repository,
                                       const std::optional<std::string>& revision);

// Error kIo, with the path and the reason.
void remove(const HubRemoval& removal);

}  // namespace headrace
