// headrace show: what a model is, how large, and where.
#include <fmt/format.h>

#include <filesystem>
#include <optional>

#include "commands.h"
#include "doctor_model.h"
#include "headrace/core/human_bytes.h"
#include "headrace/core/printable.h"
#include "headrace/hub/hub_name.h"
#include "headrace/models/model_registry.h"
#include "headrace/text/json_string.h"
#include "model_path.h"
#include "output.h"
#include "prompt.h"

namespace headrace::app {
namespace {

namespace fs = std::filesystem;

struct ShownModel {
  fs::path directory;
  std::optional<std::string> commit;  // of a snapshot in a cache
  ModelSummary summary;
  std::string dtype;  // as config.json names it, else that of activations
  bool chat_template = false;
  int64_t bytes = 0;  // on the disk, of all files
};

// The hash of the snapshot that the directory is, in Hugging Face's layout.
std::optional<std::string> commit_of(const fs::path& directory) {
  const fs::path snapshots = directory.parent_path();
  const bool in_cache =
      snapshots.filename() == "snapshots" && hub_repository(snapshots.parent_path().filename().string());
  return in_cache ? std::optional(directory.filename().string()) : std::nullopt;
}

int64_t bytes_of(const fs::path& directory) {
  int64_t bytes = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code unknown;  // a link into blobs that were removed
    const auto size = entry->is_regular_file(unknown) ? fs::file_size(entry->path(), unknown) : 0;
    if (!unknown) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

ShownModel shown_model(const std::string& model) {
  const fs::path directory = model_directory(model, "fairy-hybrid", Network::kOffline);
  const ModelDescription description = read_description(directory);
  ModelSummary summary = model_summary(description, {});
  const std::string activations(name_of(summary.info.dtype));
  return {.directory = directory,
          .commit = commit_of(directory),
          .summary = std::move(summary),
          .dtype = description.config.string_or("dtype", description.config.string_or("torch_dtype", activations)),
          .chat_template = has_chat_template(directory),
          .bytes = bytes_of(directory)};
}

std::string lines_of(const ShownModel& m) {
  const ModelInfo& info = m.summary.info;
  return fmt::format(
      "family      {}\n"
      "parameters  {}\n"
      "dtype       {}\n"
      "context     {} tokens\n"
      "chat        {}\n"
      "size        {}\n"
      "{}path        {}\n",
      info.architecture, count_text(m.summary.parameters), printable(m.dtype), info.context_length,
      m.chat_template ? "has a template" : "no template", human_bytes(m.bytes),
      m.commit ? fmt::format("revision    {}\n", printable(*m.commit)) : std::string(), m.directory.string());
}

std::string json_of(const std::string& name, const ShownModel& m) {
  const ModelInfo& info = m.summary.info;
  return fmt::format(
      R"({{"name": {}, "architecture": {}, "parameters": {}, "dtype": {}, "context_length": {}, "chat_template": {}, )"
      R"("bytes": {}, "revision": {}, "path": {}}})"
      "\n",
      json_string(name), json_string(info.architecture), m.summary.parameters, json_string(m.dtype),
      info.context_length, m.chat_template, m.bytes, m.commit ? json_string(*m.commit) : "null",
      json_string(m.directory.string()));
}

}  // namespace

int show_model(const std::string& model, Output output) {
  const ShownModel shown = shown_model(model);
  write_out(output == Output::kJson ? json_of(model, shown) : lines_of(shown));
  return 0;
}

}  // namespace headrace::app
