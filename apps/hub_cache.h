// Models that Hugging Face's tools have downloaded.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::app {

// `path` with a "~" in front of it ("~", "~/models") replaced by $HOME; others stay, as do all without HOME.
std::filesystem::path with_home(std::string_view path);

// Returns the cache's directory: $HF_HUB_CACHE, else $HUGGINGFACE_HUB_CACHE, else $HF_HOME/hub, else $XDG_CACHE_HOME or
// ~/.cache with huggingface/hub. A "~" at the beginning of a value is the home directory. Returns an empty path if none
// of these variables is set: the current directory is never searched.
std::filesystem::path hub_cache();

// The files of `repository` ("Qwen/Qwen3-0.6B") at `revision`: a branch or tag that was downloaded by its name, or a
// commit's full hash. Absent where `cache` does not hold the repository or a name is none. Error kModelFile where it
// holds no such revision, or nothing good says which of its snapshots is main: as huggingface_hub, headrace takes none
// in its place.
std::optional<std::filesystem::path> hub_snapshot(const std::filesystem::path& cache, std::string_view repository,
                                                  std::string_view revision = "main");

// Returns true if `name` can be a repository on the hub: "OWNER/NAME".
bool is_hub_repository(std::string_view name);

// The folders in `parent`, sorted; none where it cannot be read.
std::vector<std::filesystem::path> folders_in(const std::filesystem::path& parent);

// The name of the repository whose folder in a cache is called `folder`, "models--Qwen--Qwen3-0.6B"; or nothing.
std::optional<std::string> hub_repository(std::string_view folder);

// A model in a cache, as a command line names it.
struct HubModel {
  std::string name;  // "Qwen/Qwen3-0.6B"; with "@" and a hash where no branch main says which snapshot is meant
  std::filesystem::path directory;
};
std::vector<HubModel> hub_models(const std::filesystem::path& cache);  // by name

}  // namespace headrace::app
