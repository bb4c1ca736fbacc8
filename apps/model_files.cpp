#include "model_files.h"

#include <string>

#include "headrace/core/error.h"
#include "headrace/core/file_exists.h"
#include "headrace/weights/checkpoint_files.h"

namespace headrace::app {

void require_model_files(const std::filesystem::path& directory) {
  const auto has = [&directory](const char* file) { return file_exists(directory / file); };
  if (!has("config.json")) return;  // whoever reads it says so
  refuse_other_formats(directory);
  std::string missing;
  if (!has("model.safetensors") && !has("model.safetensors.index.json"))
    missing = "weights (model.safetensors, or model.safetensors.index.json and the files that it names)";
  if (!has("tokenizer.json") && !(has("vocab.json") && has("merges.txt"))) {
    missing += missing.empty() ? "" : " and ";
    missing += "a tokenizer (tokenizer.json, or vocab.json and merges.txt)";
  }
  HR_REQUIRE(missing.empty(), ErrorCode::kModelFile, directory.string(), ": lacks ", missing,
             "; headrace generate --random-weights 1 needs config.json alone");
}

}  // namespace headrace::app
