// The files of a model directory that describe the model, or the metadata of a GGUF file. A command reads them once and
// hands them on.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <variant>

#include "headrace/core/error.h"
#include "headrace/weights/config_file.h"

namespace headrace {

struct ModelDescription {
  std::filesystem::path directory;  // or the GGUF file; of several parts the first one
  JsonValue config;                 // config.json; of a GGUF file, what it would state (gguf_config.h)
  std::variant<std::monostate, JsonValue, Error>
      generation;  // generation_config.json if it exists; why it is unreadable; of a GGUF file always

  // Returns null without generation_config.json. Throws the error of an unreadable one: config.json is refused first.
  const JsonValue* generation_config() const;
};

// Error unless `directory` is that of a model, or a GGUF file: as refuse_other_formats (not for random weights, which
// need no files), or kModelFile without a config.json.
void require_model_directory(const std::filesystem::path& directory, const std::optional<uint64_t>& random_weights);

// Reads both files. Errors as require_model_directory, then as read_json_file for config.json; for a GGUF file as
// open_gguf and describe_gguf.
ModelDescription read_description(const std::filesystem::path& directory,
                                  const std::optional<uint64_t>& random_weights = {});

}  // namespace headrace
