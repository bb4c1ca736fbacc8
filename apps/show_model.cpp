// headrace show: what a model is, how large, and where.
#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <variant>

#include "bench/measured_limits.h"
#include "commands.h"
#include "doctor_model.h"
#include "gguf_summary.h"
#include "headrace/core/human_bytes.h"
#include "headrace/core/parallel.h"
#include "headrace/core/printable.h"
#include "headrace/gguf/gguf_file.h"
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

ShownModel shown_model(const fs::path& directory) {
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

std::string shown_lines(const ShownModel& m) {
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

std::string shown_json(const std::string& name, const ShownModel& m) {
  const ModelInfo& info = m.summary.info;
  return fmt::format(
      R"({{"name": {}, "architecture": {}, "parameters": {}, "dtype": {}, "context_length": {}, "chat_template": {}, )"
      R"("bytes": {}, "revision": {}, "path": {}}})"
      "\n",
      json_string(name), json_string(info.architecture), m.summary.parameters, json_string(m.dtype),
      info.context_length, m.chat_template, m.bytes, m.commit ? json_string(*m.commit) : "null",
      json_string(m.directory.string()));
}

std::string kind_line(const GgufKind& kind) {
  return fmt::format("  {:<15} {:>13}  {:>9}  {:5.2f} bits  {}\n", kind.name, count_text(kind.parameters),
                     human_bytes(kind.bytes), kind.bits(), fmt::join(kind.formats, ", "));
}

std::string shown_lines(const GgufSummary& s) {
  const GgufKind all = s.all();
  std::string lines = fmt::format(
      "family      {}\n"
      "parameters  {}\n"
      "context     {}\n"
      "chat        {}\n"
      "tokenizer   {}\n"
      "size        {}{}\n"
      "path        {}\n",
      s.architecture.empty() ? "not named" : printable(s.architecture), count_text(all.parameters),
      s.context_length ? fmt::format("{} tokens", *s.context_length) : "not named",
      s.has_chat_template ? "has a template" : "no template", s.tokenizer.empty() ? "none" : printable(s.tokenizer),
      human_bytes(s.file_bytes), s.num_files > 1 ? fmt::format(" in {} files", s.num_files) : std::string(),
      printable(s.path, 4096));
  if (all.parameters > 0) lines += fmt::format("weights     {:.2f} bits each\n", all.bits());
  for (const GgufKind& kind : s.kinds) lines += kind_line(kind);
  if (!s.unread_formats.empty()) lines += fmt::format("not read    {}\n", fmt::join(s.unread_formats, ", "));
  return lines;
}

std::string json_list(const std::vector<std::string>& words) {
  std::string list;
  for (const std::string& word : words) list += (list.empty() ? "" : ", ") + json_string(word);
  return "[" + list + "]";
}

// A token's weights, and how fast this machine's memory reads them.
struct TokenCost {
  int64_t bytes = 0;
  double bytes_per_s = 0;

  double tokens_per_s() const { return bytes_per_s / static_cast<double>(bytes); }
};

// Returns the cost, or why the model does not run.
std::variant<TokenCost, std::string> token_cost(const fs::path& file) try {
  constexpr int64_t kMeasuredBytes = int64_t{1} << 30;  // no cache answers for it
  const ModelSummary summary = model_summary(read_description(file), {});
  return TokenCost{static_cast<int64_t>(summary.info.bytes_multiplied()),
                   bench::prefetched_read_bandwidth(available_cores(), kMeasuredBytes)};
} catch (const Error& error) {
  if (error.code() != ErrorCode::kUnsupported) throw;
  return std::string(error.what());
}

std::string cost_line(const std::variant<TokenCost, std::string>& found) {
  if (const auto* refusal = std::get_if<std::string>(&found)) return fmt::format("runs        no: {}\n", *refusal);
  const auto& cost = std::get<TokenCost>(found);
  const double rate = cost.tokens_per_s();
  return fmt::format("per token   {} read: about {:.{}f} tokens/s at the {:.1f} GB/s that this machine reads now\n",
                     human_bytes(cost.bytes), rate, rate < 10 ? 1 : 0, cost.bytes_per_s / 1e9);
}

std::string kind_json(const GgufKind& kind) {
  return fmt::format(R"({{"name": {}, "tensors": {}, "parameters": {}, "bytes": {}, "bits": {:.4f}, "formats": {}}})",
                     json_string(kind.name), kind.tensors, kind.parameters, kind.bytes, kind.bits(),
                     json_list(kind.formats));
}

// The members "per_token" and "refused", of which one is null.
std::string cost_json(const std::variant<TokenCost, std::string>& found) {
  if (const auto* refusal = std::get_if<std::string>(&found))
    return fmt::format(R"("per_token": null, "refused": {})", json_string(*refusal));
  const auto& cost = std::get<TokenCost>(found);
  return fmt::format(R"("per_token": {{"bytes": {}, "read_gb_s": {:.1f}, "tokens_per_s": {:.1f}}}, "refused": null)",
                     cost.bytes, cost.bytes_per_s / 1e9, cost.tokens_per_s());
}

std::string shown_json(const std::string& name, const GgufSummary& s,
                       const std::variant<TokenCost, std::string>& cost) {
  std::string kinds;
  for (const GgufKind& kind : s.kinds) kinds += (kinds.empty() ? "" : ", ") + kind_json(kind);
  return fmt::format(
      R"({{"name": {}, "architecture": {}, "parameters": {}, "context_length": {}, "chat_template": {}, )"
      R"("tokenizer": {}, "bytes": {}, "files": {}, "kinds": [{}], "not_read": {}, {}, "path": {}}})"
      "\n",
      json_string(name), json_string(s.architecture), s.all().parameters,
      s.context_length ? fmt::format("{}", *s.context_length) : "null", s.has_chat_template, json_string(s.tokenizer),
      s.file_bytes, s.num_files, kinds, json_list(s.unread_formats), cost_json(cost), json_string(s.path));
}

}  // namespace

int show_model(const std::string& model, Output output) {
  const fs::path path = model_directory(model, "fairy-hybrid", Network::kOffline);
  if (is_gguf_path(path)) {
    const GgufSummary summary = gguf_summary(path);
    const auto cost = token_cost(path);
    write_out(output == Output::kJson ? shown_json(model, summary, cost) : shown_lines(summary) + cost_line(cost));
    return 0;
  }
  const ShownModel shown = shown_model(path);
  write_out(output == Output::kJson ? shown_json(model, shown) : shown_lines(shown));
  return 0;
}

}  // namespace headrace::app
