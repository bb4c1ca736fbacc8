// Finds a model's directory or GGUF file.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::app {

struct ModelFlags;

// The models that come with the program: ../share/headrace/demo_models beside it, else the source tree's. By name.
struct BundledModel {
  std::string name;
  std::filesystem::path directory;
};
std::vector<BundledModel> bundled_models();
// Error kInvalidArgument, with `sentence` behind the name, if `name` is that of a bundled model.
void refuse_bundled(const std::string& name, std::string_view sentence);

// The directory of the model that `given` names: a directory (of a model, or a repository's folder in Hugging Face's
// cache), a bundled model, or what the cache holds under that name, "NAME@REVISION" too; or a GGUF file, by its path or
// as "NAME:Q4_K_M". Nothing where it names none; Error kModelFile as hub_model.
std::optional<std::filesystem::path> find_model(const std::string& given);

// Downloads what is not here, or refuses to.
enum class Network : unsigned char { kUsed, kOffline };

// Returns that path, or the bundled model `demo` if `given` is empty. A model that is not here and has a hub's
// name (parse_hub_name) is downloaded first, which standard error says, unless ORG is a folder here. Throws
// kModelFile if there is no such model; errors of the download as pull_model.
std::filesystem::path model_directory(const std::string& given, const std::string& demo = "fairy-hybrid",
                                      Network network = Network::kUsed);
// Resolves --model, --revision and --offline. With --random-weights nothing is downloaded.
std::filesystem::path model_directory(const ModelFlags& flags, const std::string& demo = "fairy-hybrid");

// Refuses what model_directory would refuse before it asks a hub.
void require_model_name(const ModelFlags& flags);

}  // namespace headrace::app
