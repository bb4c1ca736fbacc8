// The files that a chat template comes from: those of a model's directory, or a GGUF file.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace {

struct TemplateFile {
  std::string origin;  // the file, for messages
  std::string source;
  // bos_token, eos_token and the like, as transformers passes them to a template.
  std::vector<std::pair<std::string, std::string>> tokens;
  std::vector<std::string> additional_tokens;  // additional_special_tokens
};

// Returns the template `name` of the model in `directory`, or of the GGUF file of that path; nullopt if it has none of
// that name. Errors: kIo, kModelFile.
std::optional<TemplateFile> read_template_file(const std::filesystem::path& directory, std::string_view name);

}  // namespace headrace
