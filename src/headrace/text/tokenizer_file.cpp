#include "headrace/text/tokenizer_file.h"

#include <optional>
#include <utility>

#include "headrace/text/json_node.h"

namespace headrace {
namespace {

using namespace json;  // NOLINT(google-build-using-namespace): this file is made of it

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
  // unk_token and fuse_unk say what becomes of text without tokens; here every byte has one (Bpe).
  require_unset(node, {"dropout", "continuing_subword_prefix", "end_of_word_suffix"});
  file.whole_words = flag_or(node, "ignore_merges", false) ? WholeWords::kTakeFirst : WholeWords::kMerge;
  for (auto& [token, id] : ids_by_token(member(node, "vocab"))) file.vocab.push_back({std::move(token), id});
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
    file.added_tokens.push_back(added_token_of(item, id_of(member(item, "id"))));
  }
}

// A Replace of one string by another.
NormalizerStep replacement_of(const Node& node) {
  allow_only(node, {"type", "pattern", "content"});
  const Node pattern = member(node, "pattern");
  allow_only(pattern, {"String"});
  NormalizerStep step{.kind = NormalizerStep::Kind::kReplace,
                      .from = string_of(member(pattern, "String")),
                      .to = string_of(member(node, "content"))};
  HR_REQUIRE(!step.from.empty(), ErrorCode::kModelFile, pattern.where, ".String is empty");
  return step;
}

void read_normalizer(const Node& node, TokenizerFile& file) {
  const std::string type = type_of(node);
  if (type == "Sequence") {
    allow_only(node, {"type", "normalizers"});
    for (const Node& item : items_of(member(node, "normalizers"))) read_normalizer(item, file);
  } else if (type == "NFC") {
    allow_only(node, {"type"});
    file.normalizer.push_back({.kind = NormalizerStep::Kind::kNfc});
  } else if (type == "Replace") {
    file.normalizer.push_back(replacement_of(node));
  } else {
    refuse(node, type, "NFC, Replace, Sequence");
  }
}

// Gemma's file splits at the string that its normalizer has replaced.
bool never_matches(const Node& pattern, const TokenizerFile& file) {
  const std::optional<Node> text = find(pattern, "String");
  return text && file.normalizer.size() == 1 && file.normalizer[0].kind == NormalizerStep::Kind::kReplace &&
         file.normalizer[0].from == string_of(*text) &&
         file.normalizer[0].to.find(string_of(*text)) == std::string::npos;
}

void read_split(const Node& node, TokenizerFile& file) {
  allow_only(node, {"type", "pattern", "behavior", "invert"});
  const Node behavior = member(node, "behavior"), pattern = member(node, "pattern");
  if (never_matches(pattern, file)) return;
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
  if (type == "Digits") {
    allow_only(node, {"type", "individual_digits"});
    file.patterns.emplace_back(flag_or(node, "individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)");
    return false;
  }
  if (type != "ByteLevel") refuse(node, type, "Split, Digits, ByteLevel, Sequence");
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

void check_byte_level_decoder(const Node& node) {
  const std::string type = type_of(node);
  if (type != "ByteLevel") refuse(node, type, "ByteLevel");
}

// Replace, ByteFallback, Fuse: the last joins pieces, which every text here is.
void read_fallback_decoder(const Node& node, TokenizerFile& file) {
  if (type_of(node) != "Sequence") refuse(node, type_of(node), "Sequence of Replace, ByteFallback, Fuse");
  allow_only(node, {"type", "decoders"});
  const std::vector<Node> steps = items_of(member(node, "decoders"));
  HR_REQUIRE(steps.size() == 3, ErrorCode::kUnsupported, node.where, " has ", steps.size(),
             " steps; built is Replace, ByteFallback, Fuse");
  if (type_of(steps[0]) != "Replace") refuse(steps[0], type_of(steps[0]), "Replace");
  if (type_of(steps[1]) != "ByteFallback") refuse(steps[1], type_of(steps[1]), "ByteFallback");
  if (type_of(steps[2]) != "Fuse") refuse(steps[2], type_of(steps[2]), "Fuse");
  file.decoded = replacement_of(steps[0]);
}

// Reads the units of pieces: bytes, as ByteLevel leaves them, or characters with fallback tokens for bytes.
void read_alphabet(const Node& root, TokenizerFile& file) {
  if (flag_or(member(root, "model"), "byte_fallback", false)) file.alphabet = Alphabet::kCharacters;
  if (file.alphabet == Alphabet::kCharacters) {
    const std::optional<Node> node = find(root, "pre_tokenizer");
    if (node && read_pre_tokenizer(*node, file)) refuse(*node, "ByteLevel", "Split, for model.byte_fallback is set");
    return read_fallback_decoder(member(root, "decoder"), file);
  }
  const Node pre_tokenizer = member(root, "pre_tokenizer");
  HR_REQUIRE(read_pre_tokenizer(pre_tokenizer, file), ErrorCode::kUnsupported, pre_tokenizer.where,
             " does not end in ByteLevel; only byte-level tokenizers and those with byte_fallback are built");
  check_byte_level_decoder(member(root, "decoder"));
}

}  // namespace

TokenizerFile parse_tokenizer_file(std::string_view text) {
  dom::parser parser;
  const Node root = parse_object(parser, text);
  // Truncation and padding are what a trainer set for its batches: transformers, too, encodes without them unless a
  // call asks for them.
  allow_only(root, {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
                    "decoder", "model"});
  const Node version = member(root, "version");
  if (string_of(version) != "1.0") refuse(version, string_of(version), "1.0");
  TokenizerFile file;
  if (const auto node = find(root, "added_tokens")) read_added_tokens(*node, file);
  if (const auto node = find(root, "normalizer")) read_normalizer(*node, file);
  read_alphabet(root, file);
  if (const auto node = find(root, "post_processor")) read_post_processor(*node, file);
  read_model(member(root, "model"), file);
  return file;
}

}  // namespace headrace
