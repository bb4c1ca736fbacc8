// The files that a model's directory must have.
#pragma once
#include <filesystem>

namespace headrace::app {

// Error kModelFile, naming all that is missing, where `directory` has a config.json but no weights or no tokenizer;
// kUnsupported as refuse_other_formats.
void require_model_files(const std::filesystem::path& directory);

}  // namespace headrace::app
