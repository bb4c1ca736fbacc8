#include "gguf_summary.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "headrace/core/error.h"
#include "headrace/core/printable.h"
#include "headrace/gguf/gguf_file.h"

namespace headrace::app {
namespace {

// Kinds by parts of their tensors' names; the first that fits counts.
constexpr std::array<std::pair<std::string_view, std::string_view>, 13> kKindOfPart = {{
    {"token_embd.", "embedding"},
    {"output.weight", "head"},
    {"_norm", "norms"},
    {"ssm_", "Gated DeltaNet"},
    {"attn_gate", "Gated DeltaNet"},
    {"attn_qkv", "Gated DeltaNet"},
    {"attn_", "attention"},
    {"ffn_gate_inp", "routers"},
    {"_exps", "experts"},
    {"_shexp", "shared experts"},
    {"ffn_", "feed-forward"},
    {"nextn.", "draft layers"},
    {"", "others"},
}};

// "blk.3.attn_output.weight" is no head.
std::string_view kind_of(std::string_view name) {
  const bool is_of_layer = name.starts_with("blk.");
  for (const auto& [part, kind] : kKindOfPart) {
    const bool fits = part == "output.weight" ? !is_of_layer && name == part : name.find(part) != name.npos;
    if (fits) return kind;
  }
  return "others";
}

void add_once(std::vector<std::string>& words, std::string_view word) {
  if (std::ranges::find(words, word) == words.end()) words.emplace_back(word);
}

GgufKind& kind_named(std::vector<GgufKind>& kinds, std::string_view name) {
  const auto found = std::ranges::find(kinds, name, &GgufKind::name);
  return found != kinds.end() ? *found : kinds.emplace_back(GgufKind{.name = std::string(name)});
}

void add_tensor(const GgufTensor& tensor, GgufSummary& summary) {
  GgufKind& kind = kind_named(summary.kinds, kind_of(tensor.name));
  int64_t parameters = 1;
  for (const uint64_t dim : tensor.dims) parameters *= static_cast<int64_t>(dim);
  ++kind.tensors;
  kind.parameters += parameters;
  kind.bytes += static_cast<int64_t>(tensor.bytes);
  add_once(kind.formats, tensor.type->name);
  if (!tensor.type->is_read()) add_once(summary.unread_formats, tensor.type->name);
}

std::string text_at(const GgufHeader& header, std::string_view key) {
  return std::string(header.text(key).value_or(std::string_view()));
}

std::string tokenizer_of(const GgufHeader& header) {
  const std::string model = text_at(header, "tokenizer.ggml.model"), splits = text_at(header, "tokenizer.ggml.pre");
  return splits.empty() ? model : model + ", " + splits;
}

}  // namespace

double GgufKind::bits() const {
  return parameters == 0 ? 0 : 8.0 * static_cast<double>(bytes) / static_cast<double>(parameters);
}

GgufKind GgufSummary::all() const {
  GgufKind sum{.name = "all"};
  for (const GgufKind& kind : kinds) {
    sum.tensors += kind.tensors, sum.parameters += kind.parameters, sum.bytes += kind.bytes;
    for (const std::string& format : kind.formats) add_once(sum.formats, format);
  }
  return sum;
}

GgufSummary gguf_summary(const std::filesystem::path& path) {
  const std::vector<GgufFile> files = open_gguf(path);
  const GgufHeader& first = files.front().header();
  const std::string architecture = text_at(first, "general.architecture");
  GgufSummary summary{.path = path.string(),
                      .architecture = architecture,
                      .tokenizer = tokenizer_of(first),
                      .context_length = first.integer(architecture + ".context_length"),
                      .has_chat_template = first.has("tokenizer.chat_template"),
                      .num_files = std::ssize(files)};
  for (const GgufFile& file : files) {
    summary.file_bytes += static_cast<int64_t>(file.bytes());
    for (const GgufTensor& tensor : file.header().tensors()) add_tensor(tensor, summary);
  }
  return summary;
}

}  // namespace headrace::app
