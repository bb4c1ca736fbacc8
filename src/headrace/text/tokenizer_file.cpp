#include "headrace/text/tokenizer_file.h"

#include <simdjson.h>

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <optional>

#include "headrace/base/error.h"

namespace headrace {
namespace {

namespace dom = simdjson::dom;
using Keys = std::initializer_list<std::string_view>;

// A value and its place in the file, for messages.
struct Node {
  dom::element value;
  std::string where;
};

template <class T>
T get(const Node& node, std::string_view expected) {
  T value;
  HR_REQUIRE(node.value.get(value) == simdjson::SUCCESS, ErrorCode::kModelFile, node.where, " is not ", expected);
  return value;
}

std::string string_of(const Node& node) { return std::string(get<std::string_view>(node, "a string")); }
bool flag_of(const Node& node) { return get<bool>(node, "true or false"); }

int32_t id_of(const Node& node) {
  const auto value = get<int64_t>(node, "an integer");
  HR_REQUIRE(value >= 0 && value <= std::numeric_limits<int32_t>::max(), ErrorCode::kModelFile, node.where, " is ",
             value, ", expected an id from 0 to 2^31 - 1");
  return static_cast<int32_t>(value);
}

std::vector<Node> items_of(const Node& node) {
  std::vector<Node> items;
  for (const dom::element value : get<dom::array>(node, "an array"))
    items.push_back({value, str(node.where, "[", items.size(), "]")});
  return items;
}

// The member `key`; nullopt if it is absent or null.
std::optional<Node> find(const Node& node, std::string_view key) {
  dom::element value;
  if (get<dom::object>(node, "an object").at_key(key).get(value) != simdjson::SUCCESS || value.is_null())
    return std::nullopt;
  return Node{value, node.where.empty() ? std::string(key) : str(node.where, ".", key)};
}

Node member(const Node& node, std::string_view key) {
  std::optional<Node> found = find(node, key);
  HR_REQUIRE(found, ErrorCode::kModelFile, node.where.empty() ? "the file" : node.where, " has no '", key, "'");
  return *std::move(found);
}

std::string type_of(const Node& node) { return string_of(member(node, "type")); }

[[noreturn]] void refuse(const Node& node, std::string_view found, std::string_view built) {
  throw Error(ErrorCode::kUnsupported, str(node.where, " is '", found, "', which is not supported; built is ", built));
}

// A member that nobody reads would be a setting ignored in silence.
void allow_only(const Node& node, Keys keys) {
  for (const auto& [key, value] : get<dom::object>(node, "an object"))
    HR_REQUIRE(std::find(keys.begin(), keys.end(), key) != keys.end(), ErrorCode::kUnsupported,
               node.where.empty() ? "the file" : node.where, " has '", key, "', which is not supported");
}

// Members that select what is not built unless they are absent, null, or as good as null.
void require_unset(const Node& node, Keys keys) {
  for (const std::string_view key : keys) {
    const std::optional<Node> set = find(node, key);
    if (!set) continue;
    std::string_view text;
    bool flag = true;
    const bool neutral = (set->value.get(text) == simdjson::SUCCESS && text.empty()) ||
                         (set->value.get(flag) == simdjson::SUCCESS && !flag);
    HR_REQUIRE(neutral, ErrorCode::kUnsupported, set->where, " is set, which is not supported");
  }
}

bool flag_or(const Node& node, std::string_view key, bool otherwise) {
  const std::optional<Node> found = find(node, key);
  return found ? flag_of(*found) : otherwise;
}

void read_vocab(const Node& node, TokenizerFile& file) {
  const auto vocab = get<dom::object>(node, "an object");
  for (const auto& [token, value] : vocab) {
    int64_t id = -1;
    const bool good = value.get(id) == simdjson::SUCCESS && id >= 0 && id <= std::numeric_limits<int32_t>::max();
    HR_REQUIRE(good, ErrorCode::kModelFile, node.where, "['", token, "'] is no id");
    HR_REQUIRE(!token.empty(), ErrorCode::kModelFile, node.where, " has an empty token");
    file.vocab.push_back({std::string(token), static_cast<int32_t>(id)});
  }
}

// One merge: "a b", or ["a", "b"] since spaces may be part of a token.
std::optional<std::pair<std::string, std::string>> merge_of(dom::element value) {
  std::string_view text;
  if (value.get(text) == simdjson::SUCCESS) {
    const size_t space = text.find(' ');
    if (space == text.npos || text.find(' ', space + 1) != text.npos) return std::nullopt;
    return std::pair{std::string(text.substr(0, space)), std::string(text.substr(space + 1))};
  }
  dom::array pair;
  std::string_view left, right;
  const bool good = value.get(pair) == simdjson::SUCCESS && pair.size() == 2 &&
                    pair.at(0).get(left) == simdjson::SUCCESS && pair.at(1).get(right) == simdjson::SUCCESS;
  if (!good) return std::nullopt;
  return std::pair{std::string(left), std::string(right)};
}

void read_model(const Node& node, TokenizerFile& file) {
  if (const std::optional<Node> type = find(node, "type"); type && string_of(*type) != "BPE")  // old files have none
    refuse(*type, string_of(*type), "BPE");
  allow_only(node, {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                    "byte_fallback", "ignore_merges", "vocab", "merges"});
  require_unset(node, {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"});
  file.whole_words = flag_or(node, "ignore_merges", false) ? WholeWords::kTakeFirst : WholeWords::kMerge;
  read_vocab(member(node, "vocab"), file);
  const Node merges = member(node, "merges");
  for (const dom::element value : get<dom::array>(merges, "an array")) {
    auto merge = merge_of(value);
    HR_REQUIRE(merge, ErrorCode::kModelFile, merges.where, "[", file.merges.size(),
               "] is no merge, expected \"left right\" or [\"left\", \"right\"]");
    file.merges.push_back(*std::move(merge));
  }
}

void read_added_tokens(const Node& node, TokenizerFile& file) {
  for (const Node& item : items_of(node)) {
    allow_only(item, {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token{.id = id_of(member(item, "id")),
                     .content = string_of(member(item, "content")),
                     .special = flag_of(member(item, "special")),
                     .normalized = flag_of(member(item, "normalized")),
                     .single_word = flag_of(member(item, "single_word")),
                     .lstrip = flag_of(member(item, "lstrip")),
                     .rstrip = flag_of(member(item, "rstrip"))};
    HR_REQUIRE(!token.content.empty(), ErrorCode::kModelFile, item.where, ".content is empty");
    file.added_tokens.push_back(std::move(token));
  }
}

void read_normalizer(const Node& node, TokenizerFile& file) {
  const std::string type = type_of(node);
  if (type == "Sequence") {
    allow_only(node, {"type", "normalizers"});
    for (const Node& item : items_of(member(node, "normalizers"))) read_normalizer(item, file);
  } else if (type == "NFC") {
    allow_only(node, {"type"});
    file.nfc = true;
  } else {
    refuse(node, type, "NFC, Sequence");
  }
}

void read_split(const Node& node, TokenizerFile& file) {
  allow_only(node, {"type", "pattern", "behavior", "invert"});
  const Node behavior = member(node, "behavior"), pattern = member(node, "pattern");
  if (string_of(behavior) != "Isolated") refuse(behavior, string_of(behavior), "Isolated");
  require_unset(node, {"invert"});
  allow_only(pattern, {"Regex"});
  file.patterns.push_back(string_of(member(pattern, "Regex")));
}

// Returns whether the ByteLevel step has been read: nothing may follow it, for the pieces are spelled bytes by then.
bool read_pre_tokenizer(const Node& node, TokenizerFile& file) {
  const std::string type = type_of(node);
  if (type == "Sequence") {
    allow_only(node, {"type", "pretokenizers"});
    bool ended = false;
    for (const Node& item : items_of(member(node, "pretokenizers"))) {
      HR_REQUIRE(!ended, ErrorCode::kUnsupported, item.where, " follows ByteLevel, which is not supported");
      ended = read_pre_tokenizer(item, file);
    }
    return ended;
  }
  if (type == "Split") return read_split(node, file), false;
  if (type != "ByteLevel") refuse(node, type, "Split, ByteLevel, Sequence");
  allow_only(node, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
  file.add_prefix_space = flag_or(node, "add_prefix_space", true);
  file.byte_level_regex = flag_or(node, "use_regex", true);
  return true;
}

void read_template(const Node& node, TokenizerFile& file) {
  allow_only(node, {"type", "single", "pair", "special_tokens"});
  std::vector<int32_t> before, after;
  size_t num_sequences = 0;
  for (const Node& item : items_of(member(node, "single"))) {
    allow_only(item, {"SpecialToken", "Sequence"});
    if (find(item, "Sequence")) {
      ++num_sequences;
      continue;
    }
    const Node token = member(member(node, "special_tokens"), string_of(member(member(item, "SpecialToken"), "id")));
    for (const Node& id : items_of(member(token, "ids"))) (num_sequences == 0 ? before : after).push_back(id_of(id));
  }
  HR_REQUIRE(num_sequences == 1, ErrorCode::kModelFile, node.where, ".single has ", num_sequences,
             " sequences, expected 1");
  file.prefix_ids.insert(file.prefix_ids.begin(), before.begin(), before.end());
  file.suffix_ids.insert(file.suffix_ids.end(), after.begin(), after.end());
}

void read_post_processor(const Node& node, TokenizerFile& file) {
  const std::string type = type_of(node);
  if (type == "Sequence") {
    allow_only(node, {"type", "processors"});
    for (const Node& item : items_of(member(node, "processors"))) read_post_processor(item, file);
  } else if (type == "TemplateProcessing") {
    read_template(node, file);
  } else if (type != "ByteLevel") {  // which moves offsets alone, and we report none
    refuse(node, type, "ByteLevel, TemplateProcessing, Sequence");
  }
}

void check_decoder(const Node& node) {
  const std::string type = type_of(node);
  if (type != "ByteLevel") refuse(node, type, "ByteLevel");
}

}  // namespace

TokenizerFile parse_tokenizer_file(std::string_view json) {
  dom::parser parser;
  const simdjson::padded_string padded(json);
  Node root;
  const simdjson::error_code error = parser.parse(padded).get(root.value);
  HR_REQUIRE(error == simdjson::SUCCESS, ErrorCode::kModelFile,
             "the file is no JSON: ", simdjson::error_message(error));
  HR_REQUIRE(root.value.is_object(), ErrorCode::kModelFile, "the file is not a JSON object");
  allow_only(root, {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
                    "decoder", "model"});
  const Node version = member(root, "version");
  if (string_of(version) != "1.0") refuse(version, string_of(version), "1.0");
  require_unset(root, {"truncation", "padding"});
  TokenizerFile file;
  if (const auto node = find(root, "added_tokens")) read_added_tokens(*node, file);
  if (const auto node = find(root, "normalizer")) read_normalizer(*node, file);
  const Node pre_tokenizer = member(root, "pre_tokenizer");
  HR_REQUIRE(read_pre_tokenizer(pre_tokenizer, file), ErrorCode::kUnsupported, pre_tokenizer.where,
             " does not end in ByteLevel; only byte-level tokenizers are built");
  if (const auto node = find(root, "post_processor")) read_post_processor(*node, file);
  check_decoder(member(root, "decoder"));
  read_model(member(root, "model"), file);
  return file;
}

}  // namespace headrace
