#include "headrace/weights/model_description.h"

#include "headrace/core/file_exists.h"
#include "headrace/gguf/gguf_file.h"
#include "headrace/weights/checkpoint_files.h"
#include "headrace/weights/gguf_config.h"

namespace headrace {
namespace {

std::variant<std::monostate, JsonValue, Error> read_if_there(const std::filesystem::path& path) {
  if (!file_exists(path)) return {};
  try {
    return read_json_file(path);
  } catch (const Error& error) {
    return error;
  }
}

}  // namespace

const JsonValue* ModelDescription::generation_config() const {
  if (const Error* error = std::get_if<Error>(&generation)) throw *error;
  return std::get_if<JsonValue>(&generation);
}

void require_model_directory(const std::filesystem::path& directory, const std::optional<uint64_t>& random_weights) {
  if (is_gguf_path(directory)) return;
  std::error_code ignored;
  HR_REQUIRE(!random_weights || !std::filesystem::is_regular_file(directory, ignored), ErrorCode::kModelFile,
             directory.string(), ": is a file, expected the directory of a model or a GGUF file");
  if (!random_weights) refuse_other_formats(directory);  // before reading files that other formats lack
  HR_REQUIRE(file_exists(directory / "config.json"), ErrorCode::kModelFile, directory.string(),
             " is no model directory: it has no config.json");
}

ModelDescription read_description(const std::filesystem::path& directory,
                                  const std::optional<uint64_t>& random_weights) {
  require_model_directory(directory, random_weights);
  if (is_gguf_path(directory)) {
    GgufDescription model = describe_gguf(open_gguf(directory));
    return {directory, std::move(model.config), std::move(model.generation)};
  }
  return {directory, read_json_file(directory / "config.json"), read_if_there(directory / "generation_config.json")};
}

}  // namespace headrace
