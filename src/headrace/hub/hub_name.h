// Names of models on a hub and in its cache.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace headrace {

// A repository, one of its revisions (a branch, a tag or a commit's full hash), and one of its models in GGUF.
struct HubName {
  std::string repository;  // "Qwen/Qwen3-0.6B"; those of Hugging Face's first years have no owner: "gpt2"
  std::string revision = "main";
  std::string gguf = {};  // "Q4_K_M" (gguf_choice.h); empty: the model in safetensors
};

// Reads "Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B@v1", "Qwen/Qwen3-0.6B-GGUF:Q4_K_M" or "Qwen/Qwen3-0.6B-GGUF:Q4_K_M@v1".
// Returns nothing where the text cannot be a name.
std::optional<HubName> parse_hub_name(std::string_view text);
// Returns the text that is read as `name`; the revision main is left out.
std::string text_of(const HubName& name);

// Returns true if `name` can be a repository on the hub: "OWNER/NAME".
bool is_hub_repository(std::string_view name);

// Returns true if `text` can be a revision: words with slashes between them, as in "refs/pr/1".
bool is_hub_revision(std::string_view text);
// Returns true for a commit's full hash.
bool is_commit_hash(std::string_view text);

// Returns true if `text` can be one part of a path in a cache: not empty, and no way out of it.
bool is_hub_word(std::string_view text);

// The folder of a repository in a cache, "models--Qwen--Qwen3-0.6B"; nothing where `repository` is no name.
std::optional<std::string> hub_folder(std::string_view repository);
// The name of the repository whose folder is called `folder`; or nothing.
std::optional<std::string> hub_repository(std::string_view folder);

}  // namespace headrace
