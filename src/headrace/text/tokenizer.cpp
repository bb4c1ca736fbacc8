#include "headrace/text/tokenizer.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <limits>
#include <system_error>
#include <utility>

#include "headrace/core/error.h"
#include "headrace/core/file_exists.h"
#include "headrace/core/foreign_content.h"
#include "headrace/gguf/gguf_file.h"
#include "headrace/text/bpe.h"
#include "headrace/text/byte_level.h"
#include "headrace/text/detokenizer.h"
#include "headrace/text/gguf_tokenizer.h"
#include "headrace/text/normalizer.h"
#include "headrace/text/pattern.h"
#include "headrace/text/slow_tokenizer_files.h"
#include "headrace/text/tokenizer_file.h"
#include "headrace/text/tokenizer_side_files.h"
#include "headrace/text/utf8.h"
#include "headrace/text/vocabulary.h"

namespace headrace {
namespace {

// The pattern of ByteLevel's use_regex, which files do not spell out (GPT-2's encoder).
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

std::vector<Vocabulary::Entry> all_entries(const TokenizerFile& file) {
  std::vector<Vocabulary::Entry> entries = file.vocab;
  for (const AddedToken& token : file.added_tokens) entries.push_back({token.content, token.id});
  return entries;
}

enum class MatchedIn : uint8_t { kRawText, kNormalizedText };

AddedTokenMatcher matcher_of(const TokenizerFile& file, MatchedIn text) {
  std::vector<AddedToken> tokens;
  for (const AddedToken& token : file.added_tokens) {
    if (token.normalized != (text == MatchedIn::kNormalizedText)) continue;
    tokens.push_back(token);
    if (token.normalized) tokens.back().content = normalized(file.normalizer, token.content);
  }
  return AddedTokenMatcher(std::move(tokens));
}

std::vector<Pattern> patterns_of(const TokenizerFile& file) {
  std::vector<Pattern> patterns;
  for (const std::string& regex : file.patterns) patterns.emplace_back(regex);
  return patterns;
}

// Returns the bytes that a token adds to a decoded text. A token with a character that spells no byte, such as a space,
// is an added token and stands for itself.
std::string bytes_of_token(const TokenizerFile& file, std::string_view token) {
  if (file.alphabet == Alphabet::kBytes) return bytes_of_spelling(token).value_or(std::string(token));
  const std::string text = file.decoded ? normalized(std::span(&*file.decoded, 1), token) : std::string(token);
  const std::optional<uint8_t> byte = byte_of_fallback(text);
  return byte ? std::string(1, static_cast<char>(*byte)) : text;
}

std::vector<std::string> bytes_by_id(const TokenizerFile& file, const Vocabulary& vocabulary) {
  std::vector<std::string> bytes;
  bytes.reserve(static_cast<size_t>(vocabulary.size()));
  for (int32_t id = 0; id < vocabulary.size(); ++id) bytes.push_back(bytes_of_token(file, vocabulary.token(id)));
  for (const AddedToken& token : file.added_tokens)  // decoded as it was matched, as in tokenizers 0.23
    if (token.normalized)
      bytes[static_cast<size_t>(token.id)] = bytes_of_token(file, normalized(file.normalizer, token.content));
  return bytes;
}

std::vector<bool> fallback_by_id(const TokenizerFile& file, const Vocabulary& vocabulary) {
  std::vector<bool> fallback(static_cast<size_t>(vocabulary.size()), false);
  if (file.alphabet == Alphabet::kBytes) return fallback;
  for (int32_t id = 0; id < vocabulary.size(); ++id)
    fallback[static_cast<size_t>(id)] = byte_of_fallback(vocabulary.token(id)).has_value();
  return fallback;
}

// The ids that merging may give: an added token that the model does not know is matched, never merged.
std::vector<bool> may_make_by_id(const TokenizerFile& file, int32_t size) {
  std::vector<bool> may_make(static_cast<size_t>(size), false);
  for (const Vocabulary::Entry& entry : file.vocab) may_make[static_cast<size_t>(entry.id)] = true;
  for (const AddedToken& token : file.added_tokens)
    if (token.special) may_make[static_cast<size_t>(token.id)] = false;
  return may_make;
}

std::vector<bool> special_by_id(const TokenizerFile& file, int32_t size) {
  std::vector<bool> special(static_cast<size_t>(size), false);
  for (const AddedToken& token : file.added_tokens)
    if (token.special) special[static_cast<size_t>(token.id)] = true;
  return special;
}

// Those of `spans` within [begin, end), counted from `begin`.
std::vector<TextSpan> spans_within(std::span<const TextSpan> spans, size_t begin, size_t end) {
  std::vector<TextSpan> within;
  auto span = std::ranges::partition_point(spans, [begin](const TextSpan& one) { return one.end <= begin; });
  for (; span != spans.end() && span->begin < end; ++span)
    within.push_back({std::max(span->begin, begin) - begin, std::min(span->end, end) - begin});
  return within;
}

}  // namespace

struct Tokenizer::Parts {
  explicit Parts(const TokenizerFile& file)
      : vocabulary(all_entries(file)),
        bpe(vocabulary, may_make_by_id(file, vocabulary.size()), file.merges, file.whole_words, file.alphabet),
        raw_matcher(matcher_of(file, MatchedIn::kRawText)),
        normalized_matcher(matcher_of(file, MatchedIn::kNormalizedText)),
        normalizer(file.normalizer),
        patterns(patterns_of(file)),
        adds_prefix_space(file.add_prefix_space),
        prefix_ids(file.prefix_ids),
        suffix_ids(file.suffix_ids),
        bytes(bytes_by_id(file, vocabulary)),
        special(special_by_id(file, vocabulary.size())),
        fallback(fallback_by_id(file, vocabulary)) {
    if (file.byte_level_regex) gpt2_pattern.emplace(kGpt2Pattern);
    for (const auto* ids : {&prefix_ids, &suffix_ids})
      for (const int32_t id : *ids)
        HR_REQUIRE(!vocabulary.token(id).empty(), ErrorCode::kModelFile, "post_processor adds id ", id,
                   ", which no token has");
  }

  void encode_valid(std::string_view text, const EncodeOptions& options, std::vector<int32_t>& ids) const;
  std::vector<TextSpan> moved_spans(std::string_view text, std::string_view changed,
                                    std::vector<TextSpan> literal) const;
  void encode_plain(std::string_view text, Bpe::Scratch& scratch, std::vector<int32_t>& ids) const;
  void encode_piece(std::string_view piece, Bpe::Scratch& scratch, std::vector<int32_t>& ids) const;

  Vocabulary vocabulary;
  Bpe bpe;  // refers to vocabulary
  AddedTokenMatcher raw_matcher, normalized_matcher;
  std::vector<NormalizerStep> normalizer;
  std::vector<Pattern> patterns;
  bool adds_prefix_space;
  std::optional<Pattern> gpt2_pattern;
  std::vector<int32_t> prefix_ids, suffix_ids;
  std::vector<std::string> bytes;  // by id
  std::vector<bool> special;       // by id
  std::vector<bool> fallback;      // by id: whether it is one byte that another token's text has no part in
};

void Tokenizer::Parts::encode_valid(std::string_view text, const EncodeOptions& options,
                                    std::vector<int32_t>& ids) const {
  Bpe::Scratch scratch;
  for (const auto& raw : raw_matcher.split(text, options.special_tokens, options.literal)) {
    if (raw.id) {
      ids.push_back(*raw.id);
      continue;
    }
    const auto begin = static_cast<size_t>(raw.text.data() - text.data());
    std::vector<TextSpan> literal = spans_within(options.literal, begin, begin + raw.text.size());
    const std::string changed = normalizer.empty() ? std::string() : normalized(normalizer, raw.text);
    if (!normalizer.empty()) literal = moved_spans(raw.text, changed, std::move(literal));
    for (const auto& segment :
         normalized_matcher.split(normalizer.empty() ? raw.text : changed, options.special_tokens, literal)) {
      if (segment.id) {
        ids.push_back(*segment.id);
      } else {
        encode_plain(segment.text, scratch, ids);
      }
    }
  }
}

// Returns the literal spans of a text in `changed`, its normalized form: all of it if the text's parts change otherwise
// than the whole.
std::vector<TextSpan> Tokenizer::Parts::moved_spans(std::string_view text, std::string_view changed,
                                                    std::vector<TextSpan> literal) const {
  if (literal.empty() || !normalized_matcher.has_special()) return {};
  std::string joined;
  size_t done = 0;
  for (TextSpan& span : literal) {
    joined += normalized(normalizer, text.substr(done, span.begin - done));
    const size_t begin = joined.size();
    joined += normalized(normalizer, text.substr(span.begin, span.end - span.begin));
    done = std::exchange(span.end, joined.size());
    span.begin = begin;
  }
  joined += normalized(normalizer, text.substr(done));
  if (joined != changed) literal = {{0, changed.size()}};
  std::erase_if(literal, [](const TextSpan& span) { return span.begin == span.end; });
  return literal;
}

void Tokenizer::Parts::encode_plain(std::string_view text, Bpe::Scratch& scratch, std::vector<int32_t>& ids) const {
  std::vector<std::string_view> pieces{text}, split;
  for (const Pattern& pattern : patterns) {
    split.clear();
    for (const std::string_view piece : pieces) pattern.split(piece, split);
    pieces.swap(split);
  }
  for (const std::string_view piece : pieces) {
    if (adds_prefix_space && piece.front() != ' ') {
      encode_piece(std::string(" ").append(piece), scratch, ids);
    } else {
      encode_piece(piece, scratch, ids);
    }
  }
}

void Tokenizer::Parts::encode_piece(std::string_view piece, Bpe::Scratch& scratch, std::vector<int32_t>& ids) const {
  if (!gpt2_pattern) return bpe.encode(piece, scratch, ids);
  std::vector<std::string_view> words;
  gpt2_pattern->split(piece, words);
  for (const std::string_view word : words) bpe.encode(word, scratch, ids);
}

Tokenizer::Tokenizer(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

namespace {

// `build()`, with `origin` before the message of an Error.
template <class Build>
auto named(const std::string& origin, Build&& build) {
  try {
    return build();
  } catch (const Error& e) {
    throw Error(e.code(), str(origin, ": ", e.what()));
  }
}

std::string read_file(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);  // first: opening a pipe would wait for its writer
  HR_REQUIRE(!error, ErrorCode::kIo, path, ": cannot be opened: ", error.message());
  HR_REQUIRE(is_regular_file(status), ErrorCode::kIo, path, ": is ",
             is_directory(status) ? "a directory" : "no regular file", ", expected a file");
  std::ifstream in(path, std::ios::binary);
  HR_REQUIRE(in, ErrorCode::kIo, path, ": cannot be opened: ", std::generic_category().message(errno));
  std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  HR_REQUIRE(!in.bad(), ErrorCode::kIo, path, ": cannot be read");
  refuse_foreign_content(path, text);
  return text;
}

}  // namespace

Tokenizer Tokenizer::from_file(const std::string& path) {
  const std::string json = read_file(path);
  return named(path, [&] { return Tokenizer(std::make_unique<const Parts>(parse_tokenizer_file(json))); });
}

namespace {

struct NamedTokenizerFile {
  std::string origin;  // for messages
  TokenizerFile file;
};

NamedTokenizerFile read_named_tokenizer_files(const std::filesystem::path& directory) {
  if (is_gguf_path(directory)) return {directory.string(), read_gguf_tokenizer(open_first_gguf(directory).header())};
  const std::filesystem::path path = directory / "tokenizer.json", pieces = directory / "tokenizer.model";
  const bool fast = file_exists(path) || !file_exists(directory / "merges.txt");
  HR_REQUIRE(!file_exists(pieces) || file_exists(path) || !fast, ErrorCode::kUnsupported, pieces.string(),
             ": a SentencePiece model, which is not read; expected ",
             "tokenizer.json beside it, as save_pretrained of transformers' fast tokenizers writes it");
  const auto text = [&directory](const char* name) { return read_file((directory / name).string()); };
  const auto text_if_any = [&](const char* name) {
    return file_exists(directory / name) ? std::optional(text(name)) : std::nullopt;
  };
  TokenizerFile file;
  if (fast) {
    const std::string json = read_file(path.string());
    file = named(path.string(), [&] { return parse_tokenizer_file(json); });
  } else {
    const std::string vocab = text("vocab.json"), merges = text("merges.txt"), config = text("tokenizer_config.json");
    file = named(directory.string(), [&] { return parse_slow_tokenizer_files(vocab, merges, config); });
  }
  const TokenizerSideFiles beside{.tokenizer_config = text_if_any("tokenizer_config.json"),
                                  .special_tokens_map = text_if_any("special_tokens_map.json"),
                                  .added_tokens = text_if_any("added_tokens.json")};
  named(directory.string(), [&] { add_side_files(beside, file); });
  const std::string origin = fast ? path.string() : str((directory / "merges.txt").string(), " and vocab.json");
  return {origin, std::move(file)};
}

}  // namespace

TokenizerFile read_tokenizer_files(const std::filesystem::path& directory) {
  return read_named_tokenizer_files(directory).file;
}

Tokenizer Tokenizer::from_directory(const std::filesystem::path& directory) {
  const auto [origin, file] = read_named_tokenizer_files(directory);
  return named(origin, [&read = file] { return Tokenizer(std::make_unique<const Parts>(read)); });
}

Tokenizer Tokenizer::from_json(std::string_view json) {
  return named("tokenizer.json", [&] { return Tokenizer(std::make_unique<const Parts>(parse_tokenizer_file(json))); });
}

Tokenizer Tokenizer::of_bytes() {
  TokenizerFile file;
  for (int32_t byte = 0; byte < 256; ++byte)
    file.vocab.push_back({spelled(std::string(1, static_cast<char>(byte))), byte});
  return Tokenizer(std::make_unique<const Parts>(file));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  HR_REQUIRE(text.size() < static_cast<size_t>(std::numeric_limits<int32_t>::max()), ErrorCode::kInvalidArgument,
             "text has ", text.size(), " bytes, expected less than 2^31 - 1");
  const bool adds = options.add_special_tokens == AddSpecialTokens::kYes;
  std::vector<int32_t> ids;
  if (adds) ids = parts_->prefix_ids;
  if (is_valid_utf8(text)) {
    parts_->encode_valid(text, options, ids);
  } else {
    HR_REQUIRE(options.literal.empty(), ErrorCode::kInvalidArgument, "a text with literal spans is not UTF-8");
    parts_->encode_valid(repaired(text), options, ids);
  }
  if (adds) ids.insert(ids.end(), parts_->suffix_ids.begin(), parts_->suffix_ids.end());
  return ids;
}

size_t Tokenizer::last_cut(std::string_view text, std::span<const TextSpan> literal) const {
  if (!is_valid_utf8(text) || parts_->raw_matcher.has_single_word()) return 0;  // such a token looks over the cut
  size_t cut = 0;
  for (const auto& segment : parts_->raw_matcher.split(text, SpecialTokens::kParse, literal)) {
    if (segment.id && is_special(*segment.id)) cut = static_cast<size_t>(segment.text.data() - text.data());
  }
  return cut;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, SpecialText special) const {
  Detokenizer detokenizer(*this, special);
  std::string text;
  for (const int32_t id : ids) text += detokenizer.push(id);
  return text + detokenizer.flush();
}

std::optional<int32_t> Tokenizer::token_to_id(std::string_view token) const { return parts_->vocabulary.id_of(token); }

std::optional<std::string> Tokenizer::id_to_token(int32_t id) const {
  const std::string_view token = parts_->vocabulary.token(id);
  if (token.empty()) return std::nullopt;
  return std::string(token);
}

std::span<const int32_t> Tokenizer::prefix_ids() const { return parts_->prefix_ids; }

int32_t Tokenizer::vocab_size() const { return parts_->vocabulary.size(); }

std::string_view Tokenizer::bytes_of(int32_t id) const {
  return id >= 0 && id < vocab_size() ? std::string_view(parts_->bytes[static_cast<size_t>(id)]) : std::string_view();
}

bool Tokenizer::is_fallback_byte(int32_t id) const {
  return id >= 0 && id < vocab_size() && parts_->fallback[static_cast<size_t>(id)];
}

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && id < vocab_size() && parts_->special[static_cast<size_t>(id)];
}

}  // namespace headrace
