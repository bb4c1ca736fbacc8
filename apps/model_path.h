// Finds a model's directory.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace headrace::app {

struct ModelFlags;

// The models that come with the program: ../share/headrace/demo_models beside it, else the source tree's. By name.
struct BundledModel {
  std::string name;
  std::filesystem::path directory;
};
std::vector<BundledModel> bundled_models();

// The directory of the model that `given` names: a directory (of a model, or a repository's folder in Hugging Face's
// cache), a bundled model, or what the cache holds under that name, "NAME@REVISION" too. Nothing where it names none;
// Error kModelFile as hub_snapshot.
std::optional<std::filesystem::path> find_model(const std::string& given);

// Returns that directory, or the bundled model `demo` if `given` is empty. Throws kModelFile if there is no such model.
std::filesystem::path model_directory(const std::string& given, const std::string& demo = "fairy-hybrid");
// Resolves --model and --revision.
std::filesystem::path model_directory(const ModelFlags& flags, const std::string& demo = "fairy-hybrid");

}  // namespace headrace::app
