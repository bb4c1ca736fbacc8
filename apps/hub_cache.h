// Models that Hugging Face's tools have downloaded.
#pragma once
#include <filesystem>
#include <optional>
#include <string_view>

namespace headrace::app {

// Where they lie: $HF_HUB_CACHE, else $HF_HOME/hub, else $XDG_CACHE_HOME or ~/.cache with huggingface/hub. Empty where
// none of these variables is set: nothing is looked for in the current directory.
std::filesystem::path hub_cache();

// The files of `repository` ("Qwen/Qwen3-0.6B") at its main revision; absent where `cache` does not hold it or the name
// is none of a repository. Error kModelFile where it holds the repository and nothing good says which snapshot is main:
// as huggingface_hub, headrace takes none in its place.
std::optional<std::filesystem::path> hub_snapshot(const std::filesystem::path& cache, std::string_view repository);

}  // namespace headrace::app
