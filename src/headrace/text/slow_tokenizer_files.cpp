#include "headrace/text/slow_tokenizer_files.h"

#include <array>
#include <charconv>

#include "headrace/core/printable.h"
#include "headrace/text/json_node.h"
#include "headrace/text/known_patterns.h"

namespace headrace {
namespace {

using namespace json;  // NOLINT(google-build-using-namespace): this file is made of it

constexpr std::array<std::string_view, 3> kClasses = {"DreamTokenizer", "Qwen2Tokenizer", "Qwen2TokenizerFast"};

// A line per merge, behind a "#version" line.
void read_merges(std::string_view text, TokenizerFile& file) {
  for (size_t at = 0, line = 1; at < text.size(); ++line) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view merge = text.substr(at, end - at);
    at = end + 1;
    if (merge.ends_with('\r')) merge.remove_suffix(1);
    if (merge.empty() || (line == 1 && merge.starts_with("#version"))) continue;
    const size_t space = merge.find(' ');
    const bool good =
        space != merge.npos && space > 0 && space + 1 < merge.size() && merge.find(' ', space + 1) == merge.npos;
    HR_REQUIRE(good, ErrorCode::kModelFile, "merges.txt: line ", line, " is no merge, expected \"left right\"");
    file.merges.emplace_back(merge.substr(0, space), merge.substr(space + 1));
  }
}

int32_t id_of_key(std::string_view key) {
  int32_t id = -1;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
  HR_REQUIRE(error == std::errc() && end == key.data() + key.size() && id >= 0, ErrorCode::kModelFile,
             "tokenizer_config.json: added_tokens_decoder has the key '", printable(key), "', expected an id");
  return id;
}

void read_config(const Node& root, TokenizerFile& file) {
  const Node name = member(root, "tokenizer_class");
  if (std::find(kClasses.begin(), kClasses.end(), string_of(name)) == kClasses.end()) {
    refuse(name, string_of(name), "DreamTokenizer, Qwen2Tokenizer, Qwen2TokenizerFast");
  }
  require_unset(root, {"add_prefix_space", "add_bos_token", "add_eos_token", "split_special_tokens"});
  const std::optional<Node> added = find(root, "added_tokens_decoder");
  if (!added) return;
  for (const auto& [key, value] : get<dom::object>(*added, "an object")) {
    file.added_tokens.push_back(added_token_of({value, str(added->where, "['", printable(key), "']")}, id_of_key(key)));
  }
}

}  // namespace

TokenizerFile parse_slow_tokenizer_files(std::string_view vocab, std::string_view merges, std::string_view config) {
  TokenizerFile file;
  file.normalizer.push_back({.kind = NormalizerStep::Kind::kNfc});
  file.patterns.emplace_back(kQwen2Pattern);
  dom::parser parser;
  Node tokens = parse_object(parser, vocab, "vocab.json");
  tokens.where = "vocab.json";
  for (auto& [token, id] : ids_by_token(tokens)) file.vocab.push_back({std::move(token), id});
  read_merges(merges, file);
  dom::parser config_parser;
  Node root = parse_object(config_parser, config, "tokenizer_config.json");
  root.where = "tokenizer_config.json";
  read_config(root, file);
  return file;
}

}  // namespace headrace
