// Models that a hub's tools have downloaded, in the layout of Hugging Face's cache.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/hub/gguf_choice.h"
#include "headrace/hub/hub_name.h"

namespace headrace {

// The files of `repository` ("Qwen/Qwen3-0.6B") at `revision`: a branch or tag that was downloaded by its name, or a
// commit's full hash. Absent where `cache` does not hold the repository or a name is none. Error kModelFile where it
// holds no such revision, or nothing good says which of its snapshots is main: as huggingface_hub, headrace takes none
// in its place.
std::optional<std::filesystem::path> hub_snapshot(const std::filesystem::path& cache, std::string_view repository,
                                                  std::string_view revision = "main");

// The model `name` in a cache: a snapshot's directory, or in it the file in GGUF (the first part). Absent where the
// cache does not hold it. Errors as hub_snapshot; kModelFile where several GGUF files may be meant.
std::optional<std::filesystem::path> hub_model(const std::filesystem::path& cache, const HubName& name);

// The models in GGUF of a snapshot.
std::vector<GgufChoice> gguf_choices_in(const std::filesystem::path& snapshot);

// The folders in `parent`, sorted; none where it cannot be read.
std::vector<std::filesystem::path> folders_in(const std::filesystem::path& parent);

// A model in a cache, as a command line names it.
struct HubModel {
  std::string name;  // "Qwen/Qwen3-0.6B"; with "@" and a hash where no branch main says which snapshot is meant
  std::filesystem::path directory;
};
std::vector<HubModel> hub_models(const std::filesystem::path& cache);  // by name

}  // namespace headrace
