// Models in GGUF among the files of a repository.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

// One model: its file, or its parts, the first one first. Names are paths in the repository.
struct GgufChoice {
  std::string stem;  // "Qwen3-0.6B-Q4_K_M"
  std::vector<std::string> names;
};

// Returns the name of a file without its part's number and ".gguf": "a" of "a-00001-of-00002.gguf".
std::string_view gguf_stem(std::string_view file_name);

// Returns the models among `names`, by stem. Parts that read images, statistics of quantisations and layers that draft
// are no models.
std::vector<GgufChoice> gguf_choices(std::vector<std::string> names);

// Returns the one whose name has `tag` as a word ("Q4_K_M" in "a-Q4_K_M.gguf" or "Q4_K_M/a.gguf", in any case), or
// whose stem is `tag`. Error kModelFile where there is none or several, with `repository` and all that there are.
GgufChoice choose_gguf(const std::vector<GgufChoice>& choices, std::string_view tag, std::string_view repository);

// Returns true if at least one has that name.
bool has_gguf(const std::vector<GgufChoice>& choices, std::string_view tag);

// Returns the shortest tag that choose_gguf takes for this one of `choices`.
std::string gguf_tag(const std::vector<GgufChoice>& choices, const GgufChoice& choice);

// "a-Q4_K_M, a-Q8_0": the stems, for messages.
std::string gguf_stems(const std::vector<GgufChoice>& choices);

}  // namespace headrace
