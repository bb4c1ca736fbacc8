#include "headrace/chat/template_files.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <utility>

#include "headrace/chat/jinja_parser.h"
#include "headrace/core/error.h"
#include "headrace/core/file_exists.h"
#include "headrace/core/foreign_content.h"
#include "headrace/gguf/gguf_file.h"
#include "headrace/text/json_node.h"

namespace headrace {
namespace {

using namespace json;  // NOLINT(google-build-using-namespace): this file is made of it

constexpr std::string_view kTokenNames[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                            "pad_token", "cls_token", "mask_token"};
constexpr size_t kMaxConfigBytes = 64 << 20;

std::string read_text(const std::filesystem::path& path, size_t most) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);  // of a regular file alone
  HR_REQUIRE(!error, ErrorCode::kIo, path.string(), ": cannot be read: ", error.message());
  HR_REQUIRE(size <= most, ErrorCode::kModelFile, path.string(), ": it has ", size, " bytes, expected at most ", most);
  std::ifstream in(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  HR_REQUIRE(in && !in.bad(), ErrorCode::kIo, path.string(), ": cannot be read");
  refuse_foreign_content(path.string(), text);
  return text;
}

// A JSON file's root; it owns what its nodes refer to.
struct ConfigFile {
  explicit ConfigFile(const std::filesystem::path& file) : path(file.string()) {
    if (!file_exists(file)) return;
    root = parse_object(parser, read_text(file, kMaxConfigBytes), path);
    root->where = path + ": ";
  }
  std::optional<Node> at(std::string_view key) const { return root ? find(*root, key) : std::nullopt; }

  std::string path;
  dom::parser parser;
  std::optional<Node> root;
};

// The content of a token that is a text, or an object with a content; nullopt if it is neither.
std::optional<std::string> content_of(const Node& token) {
  if (token.value.is_string()) return string_of(token);
  if (!token.value.is_object()) return std::nullopt;
  const auto content = find(token, "content");
  return content ? std::optional(string_of(*content)) : std::nullopt;
}

// A template that is a text, or a list of named ones.
std::optional<std::string> template_of(const std::optional<Node>& node, std::string_view name) {
  if (!node) return std::nullopt;
  if (node->value.is_string()) return name == "default" ? std::optional(string_of(*node)) : std::nullopt;
  for (const Node& item : items_of(*node))
    if (string_of(member(item, "name")) == name) return string_of(member(item, "template"));
  return std::nullopt;
}

void add_tokens(const ConfigFile& file, TemplateFile& made) {
  const auto set = [&made](std::string_view name, const std::optional<Node>& token) {
    const auto content = token ? content_of(*token) : std::nullopt;
    if (!content) return;
    const auto known = std::ranges::find(made.tokens, name, &std::pair<std::string, std::string>::first);
    if (known == made.tokens.end()) made.tokens.emplace_back(name, *content);
  };
  for (const std::string_view name : kTokenNames) set(name, file.at(name));
  if (const auto extra = file.at("extra_special_tokens"); extra && extra->value.is_object())
    for (const auto& [name, token] : get<dom::object>(*extra, "an object")) set(name, Node{token, extra->where});
  const auto list = file.at("additional_special_tokens");
  if (!list || !list->value.is_array() || !made.additional_tokens.empty()) return;
  for (const Node& token : items_of(*list))
    if (const auto content = content_of(token)) made.additional_tokens.push_back(*content);
}

// Keys of the tokens in a GGUF file ("seperator" is how they are spelled there) and their names in templates.
constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kGgufTokens = {
    {{"tokenizer.ggml.bos_token_id", "bos_token"},
     {"tokenizer.ggml.eos_token_id", "eos_token"},
     {"tokenizer.ggml.unknown_token_id", "unk_token"},
     {"tokenizer.ggml.seperator_token_id", "sep_token"},
     {"tokenizer.ggml.padding_token_id", "pad_token"},
     {"tokenizer.ggml.cls_token_id", "cls_token"},
     {"tokenizer.ggml.mask_token_id", "mask_token"}}};

std::optional<TemplateFile> template_of_gguf(const std::filesystem::path& path, std::string_view name) {
  const GgufFile file = open_first_gguf(path);
  const GgufHeader& header = file.header();
  const auto source = header.text(str("tokenizer.chat_template", name == "default" ? "" : str(".", name)));
  if (!source) return std::nullopt;
  HR_REQUIRE(source->size() <= jinja::kMaxTemplateBytes, ErrorCode::kModelFile, path.string(),
             ": the chat template has ", source->size(), " bytes, expected at most ", jinja::kMaxTemplateBytes);
  TemplateFile made{.origin = path.string(), .source = std::string(*source)};
  const auto* const tokens = header.texts("tokenizer.ggml.tokens");
  for (const auto& [key, token] : kGgufTokens) {
    const auto id = header.integer(key);
    if (tokens != nullptr && id && *id >= 0 && std::cmp_less(*id, tokens->size()))
      made.tokens.emplace_back(token, (*tokens)[static_cast<size_t>(*id)]);
  }
  return made;
}

bool is_file_name(std::string_view name) {
  return !name.empty() && name.find('/') == name.npos && name.find('\0') == name.npos && name != "." && name != "..";
}

}  // namespace

std::optional<TemplateFile> read_template_file(const std::filesystem::path& directory, std::string_view name) {
  if (is_gguf_path(directory)) return template_of_gguf(directory, name);
  const ConfigFile config(directory / "tokenizer_config.json");
  TemplateFile made;
  const std::filesystem::path file = name == "default"    ? directory / "chat_template.jinja"
                                     : is_file_name(name) ? directory / "chat_templates" / str(name, ".jinja")
                                                          : std::filesystem::path();
  if (!file.empty() && file_exists(file)) {
    made.origin = file.string();
    made.source = read_text(file, jinja::kMaxTemplateBytes);
  } else if (auto text = template_of(config.at("chat_template"), name)) {
    made.origin = config.path;
    made.source = std::move(*text);
  } else {
    const ConfigFile legacy(directory / "chat_template.json");
    text = template_of(legacy.at("chat_template"), name);
    if (!text) return std::nullopt;
    made.origin = legacy.path;
    made.source = std::move(*text);
  }
  add_tokens(config, made);
  add_tokens(ConfigFile(directory / "special_tokens_map.json"), made);
  return made;
}

}  // namespace headrace
