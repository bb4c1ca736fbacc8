#include "headrace/text/tokenizer_side_files.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <unordered_map>
#include <utility>

#include "headrace/core/printable.h"
#include "headrace/text/byte_level.h"
#include "headrace/text/json_node.h"

namespace headrace {
namespace {

using namespace json;  // NOLINT(google-build-using-namespace): this file is made of it

constexpr std::string_view kNames[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                       "pad_token", "cls_token", "mask_token"};
constexpr std::string_view kLists[] = {"additional_special_tokens", "extra_special_tokens"};
constexpr std::string_view kLlamaClasses[] = {"LlamaTokenizer", "LlamaTokenizerFast"};

// A file's root; it owns what its nodes refer to.
struct Parsed {
  Parsed(const std::optional<std::string>& text, std::string_view name) {
    if (!text) return;
    root = parse_object(parser, *text, name);
    root->where = name;
  }
  std::optional<Node> at(std::string_view key) const { return root ? find(*root, key) : std::nullopt; }

  dom::parser parser;
  std::optional<Node> root;
};

bool is_object(const Node& node) { return node.value.is_object(); }

// A token as its content alone or with flags, which default as transformers' AddedToken has them.
AddedToken token_of(const Node& node, bool special) {
  if (!is_object(node)) return {.content = string_of(node), .special = special};
  special = flag_or(node, "special", special);
  return {.content = string_of(member(node, "content")),
          .special = special,
          .normalized = flag_or(node, "normalized", !special),
          .single_word = flag_or(node, "single_word", false),
          .lstrip = flag_or(node, "lstrip", false),
          .rstrip = flag_or(node, "rstrip", false)};
}

// The tokens that `file` names, and their contents in the order in which transformers adds them.
std::map<std::string_view, std::vector<AddedToken>> named_tokens(const Parsed& file) {
  std::map<std::string_view, std::vector<AddedToken>> named;
  for (const std::string_view name : kNames) {
    const std::optional<Node> value = file.at(name);
    if (value && (is_object(*value) || value->value.is_string())) named[name] = {token_of(*value, true)};
  }
  for (const std::string_view list : kLists) {
    const std::optional<Node> value = file.at(list);
    if (!value) continue;
    std::vector<AddedToken>& tokens = named[list];
    if (is_object(*value)) {
      for (const auto& [key, item] : get<dom::object>(*value, "an object"))
        tokens.push_back(token_of({item, str(value->where, ".", printable(key))}, true));
    } else {
      for (const Node& item : items_of(*value)) tokens.push_back(token_of(item, true));
    }
    for (AddedToken& token : tokens) token.special = true;
  }
  return named;
}

// Tokens join a tokenizer's one after the other.
class Joiner {
 public:
  explicit Joiner(TokenizerFile& file) : file_(file), next_id_(static_cast<int32_t>(file.vocab.size())) {
    for (size_t i = 0; i < file.added_tokens.size(); ++i) note(i);
  }

  // A token of a file that states its id; `where` is its place. Its flags count, but that it is special once.
  void state(AddedToken token, int32_t id, const std::string& where) {
    if (token.content.empty()) return;
    if (AddedToken* known = find_added(token.content)) {
      token.id = known->id, token.special = token.special || known->special;
      *known = std::move(token);
      return;
    }
    const std::optional<int32_t> of_model = id_in_vocab(token.content);
    HR_REQUIRE(of_model || id == next_id_, ErrorCode::kModelFile, where, " is '", printable(token.content),
               "', which is not in tokenizer.json; expected the next id, ", next_id_, ", which transformers gives it");
    token.id = of_model.value_or(id);
    push(std::move(token));
  }

  // A token that a file names as special.
  void name(AddedToken token) {
    if (token.content.empty()) return;
    if (AddedToken* known = find_added(token.content)) {
      known->special = true;
      return;
    }
    const std::optional<int32_t> of_model = id_in_vocab(token.content);
    if (of_model && is_byte(token.content)) return;  // any text may hold it
    token.id = of_model.value_or(next_id_), token.special = true;
    push(std::move(token));
  }

  std::optional<int32_t> id_of(const std::string& content) {
    const AddedToken* known = find_added(content);
    return known != nullptr ? std::optional(known->id) : id_in_vocab(content);
  }

 private:
  static bool is_byte(std::string_view token) {
    const auto bytes = bytes_of_spelling(token);
    return byte_of_fallback(token) || (bytes && bytes->size() == 1);
  }
  void note(size_t i) {
    added_.emplace(file_.added_tokens[i].content, i);
    next_id_ = std::max(next_id_, file_.added_tokens[i].id + 1);
  }
  void push(AddedToken token) {
    file_.added_tokens.push_back(std::move(token));
    note(file_.added_tokens.size() - 1);
  }
  AddedToken* find_added(const std::string& content) {
    const auto found = added_.find(content);
    return found == added_.end() ? nullptr : &file_.added_tokens[found->second];
  }
  // Most files state nothing new: the vocabulary is not hashed for them.
  std::optional<int32_t> id_in_vocab(std::string_view content) {
    if (vocab_.empty()) {
      for (const Vocabulary::Entry& entry : file_.vocab) vocab_.emplace(entry.token, entry.id);
    }
    const auto found = vocab_.find(content);
    return found == vocab_.end() ? std::nullopt : std::optional(found->second);
  }

  TokenizerFile& file_;
  int32_t next_id_;
  std::unordered_map<std::string, size_t> added_;
  std::unordered_map<std::string_view, int32_t> vocab_;
};

void state_decoder(const Node& decoder, Joiner& joiner) {
  std::map<int32_t, Node> by_id;
  for (const auto& [key, value] : get<dom::object>(decoder, "an object")) {
    const Node item{value, str(decoder.where, "['", printable(key), "']")};
    int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    HR_REQUIRE(error == std::errc() && end == key.data() + key.size() && id >= 0, ErrorCode::kModelFile, decoder.where,
               " has the key '", printable(key), "', expected an id");
    by_id.insert_or_assign(id, item);
  }
  for (const auto& [id, item] : by_id) joiner.state(token_of(item, false), id, item.where);
}

void state_added_tokens(const Node& root, const auto& named, Joiner& joiner) {
  std::map<int32_t, std::string> by_id;
  for (auto& [token, id] : ids_by_token(root)) by_id.insert_or_assign(id, token);
  for (const auto& [id, content] : by_id) {
    const bool special = std::ranges::any_of(named, [&text = content](const auto& one) {
      return std::ranges::find(one.second, text, &AddedToken::content) != one.second.end();
    });
    joiner.state({.content = content, .special = special, .normalized = !special}, id,
                 str(root.where, "['", printable(content), "']"));
  }
}

void replace_template(const Parsed& config, const auto& named, Joiner& joiner, TokenizerFile& file) {
  const std::optional<Node> name = config.at("tokenizer_class");
  if (!name || std::ranges::find(kLlamaClasses, string_of(*name)) == std::end(kLlamaClasses)) return;
  const auto ids_of = [&](std::string_view flag, std::string_view token, std::vector<int32_t>& ids) {
    const std::optional<Node> adds = config.at(flag);
    if (!adds) return;
    ids.clear();
    const auto found = named.find(token);
    if (!flag_of(*adds) || found == named.end()) return;
    if (const auto id = joiner.id_of(found->second.front().content)) ids.push_back(*id);
  };
  ids_of("add_bos_token", "bos_token", file.prefix_ids);
  ids_of("add_eos_token", "eos_token", file.suffix_ids);
}

}  // namespace

void add_side_files(const TokenizerSideFiles& texts, TokenizerFile& file) {
  const Parsed config(texts.tokenizer_config, "tokenizer_config.json");
  const Parsed map(texts.special_tokens_map, "special_tokens_map.json");
  const Parsed added(texts.added_tokens, "added_tokens.json");
  Joiner joiner(file);
  auto named = named_tokens(config);
  if (const std::optional<Node> decoder = config.at("added_tokens_decoder")) {
    state_decoder(*decoder, joiner);
  } else {
    for (auto& [name, tokens] : named_tokens(map)) named[name] = std::move(tokens);
    if (added.root) state_added_tokens(*added.root, named, joiner);
  }
  for (const std::string_view name : kNames)
    for (const AddedToken& token : named[name]) joiner.name(token);
  for (const std::string_view list : kLists)
    for (const AddedToken& token : named[list]) joiner.name(token);
  replace_template(config, named, joiner, file);
}

}  // namespace headrace
