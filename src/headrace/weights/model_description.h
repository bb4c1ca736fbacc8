// The files of a model directory that describe the model. A command reads them once and hands them on.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <variant>

#include "headrace/core/error.h"
#include "headrace/weights/config_file.h"

namespace headrace {

struct ModelDescription {
  std::filesystem::path directory;
  JsonValue config;  // config.json
  std::variant<std::monostate, JsonValue, Error>
      generation;  // generation_config.json if it exists; why it is unreadable

  // Returns null without generation_config.json. Throws the error of an unreadable one: config.json is refused first.
  const JsonValue* generation_config() const;
};

// Error unless `directory` is that of a model: as refuse_other_formats (not for random weights, which need no files),
// or kModelFile without a config.json.
void require_model_directory(const std::filesystem::path& directory, const std::optional<uint64_t>& random_weights);

// Reads both files. Errors as require_model_directory, then as read_json_file for config.json.
ModelDescription read_description(const std::filesystem::path& directory,
                                  const std::optional<uint64_t>& random_weights = {});

}  // namespace headrace
