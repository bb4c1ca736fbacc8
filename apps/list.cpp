// headrace list: the models that a command finds by name.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "commands.h"
#include "headrace/core/error.h"
#include "headrace/core/file_exists.h"
#include "headrace/core/human_bytes.h"
#include "headrace/core/printable.h"
#include "headrace/gguf/gguf_file.h"
#include "headrace/hub/hub_cache.h"
#include "headrace/models/model_registry.h"
#include "headrace/text/json_string.h"
#include "headrace/weights/checkpoint_files.h"
#include "hub_environment.h"
#include "model_path.h"
#include "output.h"

namespace headrace::app {
namespace {

namespace fs = std::filesystem;

struct ListedModel {
  std::string name;
  fs::path directory;
  std::string place;         // "bundled", "cache"
  std::string architecture;  // as config.json names it; empty where nothing does
  bool runs = false;
  int64_t bytes = 0;  // of the weights' files
};

// Returns what config.json calls the model, whether or not headrace runs it.
std::string named_architecture(const JsonValue& config) {
  const JsonValue* names = config.find("architectures");
  return names != nullptr && !names->as_strings().empty() ? names->as_strings().front() : "";
}

bool is_weights(const fs::path& file) {
  const std::string kind = file.extension().string();
  return kind == ".safetensors" || kind == ".gguf" || kind == ".bin" || kind == ".pt" || kind == ".pth";
}

int64_t file_bytes(const fs::path& file) {
  std::error_code unknown;  // a link into blobs that were removed
  const auto size = fs::file_size(file, unknown);
  return unknown ? 0 : static_cast<int64_t>(size);
}

int64_t weight_bytes(const fs::path& directory) {
  int64_t bytes = 0;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    if (is_weights(entry->path())) bytes += file_bytes(entry->path());
  }
  return bytes;
}

ListedModel listed(std::string name, const fs::path& directory, std::string place) {
  ListedModel model{
      .name = std::move(name), .directory = directory, .place = std::move(place), .bytes = weight_bytes(directory)};
  try {
    if (is_gguf_path(directory))
      model.architecture = open_first_gguf(directory).header().text("general.architecture").value_or("");
    const ModelDescription description = read_description(directory, /*random_weights=*/0);  // of any format
    model.architecture = named_architecture(description.config);
    if (!is_gguf_path(directory)) refuse_other_formats(directory);
    stated_info(description, {});
    model.runs = true;
  } catch (const Error&) {  // "not supported" in the table; `headrace generate` says why
  }
  return model;
}

// A snapshot may hold a model in safetensors, and files in GGUF.
void add_snapshot(const HubModel& snapshot, std::vector<ListedModel>& models) {
  const std::vector<GgufChoice> choices = gguf_choices_in(snapshot.directory);
  const bool is_model = choices.empty() || file_exists(snapshot.directory / "config.json");
  if (is_model) models.push_back(listed(snapshot.name, snapshot.directory, "cache"));
  for (const GgufChoice& choice : choices) {
    HubName name = parse_hub_name(snapshot.name).value_or(HubName());
    name.gguf = gguf_tag(choices, choice);
    models.push_back(listed(text_of(name), snapshot.directory / choice.names.front(), "cache"));
    models.back().bytes = 0;
    for (const std::string& part : choice.names) models.back().bytes += file_bytes(snapshot.directory / part);
  }
}

std::vector<ListedModel> all_models() {
  std::vector<ListedModel> models;
  for (const BundledModel& model : bundled_models()) models.push_back(listed(model.name, model.directory, "bundled"));
  const fs::path cache = hub_cache();
  if (cache.empty()) return models;
  for (const HubModel& model : hub_models(cache)) add_snapshot(model, models);
  return models;
}

// "SDAR" of "SDARForCausalLM". Names come from files, which may hold anything.
std::string family_of(const ListedModel& model) {
  if (model.architecture.empty()) return "unknown (not supported)";
  std::string family = printable(model.architecture);
  for (const std::string_view task : {"ForCausalLM", "ForConditionalGeneration", "LMHeadModel", "ModelLM"}) {
    if (family.ends_with(task) && family.size() > task.size()) family.resize(family.size() - task.size());
  }
  return model.runs ? family : family + " (not supported)";
}

void print_json(const std::vector<ListedModel>& models) {
  std::string rows;
  for (const ListedModel& m : models) {
    rows += fmt::format(R"({}{{"name": {}, "architecture": {}, "runs": {}, "bytes": {}, "place": "{}", "path": {}}})",
                        rows.empty() ? "" : ", ", json_string(m.name), json_string(m.architecture), m.runs, m.bytes,
                        m.place, json_string(m.directory.string()));
  }
  write_out(fmt::format("[{}]\n", rows));
}

void print_table(const std::vector<ListedModel>& models) {
  size_t names = 4, families = 6;
  for (const ListedModel& m : models) {
    names = std::max(names, m.name.size()), families = std::max(families, family_of(m).size());
  }
  std::string text = fmt::format("{:<{}}  {:<{}}  {:>10}  {}\n", "NAME", names, "FAMILY", families, "SIZE", "PLACE");
  for (const ListedModel& m : models) {
    text += fmt::format("{:<{}}  {:<{}}  {:>10}  {}\n", m.name, names, family_of(m), families, human_bytes(m.bytes),
                        m.place);
  }
  const fs::path cache = hub_cache();
  text += cache.empty()
              ? "\nThere is no cache of models: HOME is not set.\n"
              : fmt::format("\nThe cache is {}; HF_HOME or HF_HUB_CACHE names another one.\n", cache.string());
  write_out(text);
}

}  // namespace

int list_models(Output output) {
  const std::vector<ListedModel> models = all_models();
  if (output == Output::kJson) {
    print_json(models);
  } else {
    print_table(models);
  }
  return 0;
}

}  // namespace headrace::app
