#include "model_files.h"

#include <string>

#include "headrace/core/error.h"
#include "headrace/core/file_exists.h"
#include "headrace/hub/hub_name.h"
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
  const auto repository = hub_repository(directory.parent_path().parent_path().filename().string());  // of a snapshot
  HR_REQUIRE(missing.empty(), ErrorCode::kModelFile, directory.string(), ": lacks ", missing,
             repository ? str("; headrace pull ", *repository, " completes it")
                        : std::string("; headrace generate --random-weights 1 needs config.json alone"));
}

}  // namespace headrace::app
