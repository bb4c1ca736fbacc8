#include "headrace/text/gguf_tokenizer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "headrace/core/error.h"
#include "headrace/core/printable.h"
#include "headrace/text/known_patterns.h"
#include "headrace/text/utf8.h"

namespace headrace {
namespace {

constexpr std::string_view kModel = "tokenizer.ggml.model", kPre = "tokenizer.ggml.pre",
                           kTokens = "tokenizer.ggml.tokens", kTypes = "tokenizer.ggml.token_type",
                           kMerges = "tokenizer.ggml.merges", kWhole = "tokenizer.huggingface.json";

enum class NormalForm : uint8_t { kAsIs, kNfc };
enum class BeginToken : uint8_t { kNo, kYes };

enum class Gpt2Split : uint8_t { kNo, kYes };

// What files mean by a name. `begin`: whether a text begins with the token bos if the file does not say. `gpt2`: pieces
// are split once more by GPT-2's pattern.
struct PreTokenizer {
  std::string_view name, pattern;
  NormalForm form = NormalForm::kAsIs;
  WholeWords whole_words = WholeWords::kMerge;
  BeginToken begin = BeginToken::kNo;
  Gpt2Split gpt2 = Gpt2Split::kNo;
};

constexpr auto kTakeFirst = WholeWords::kTakeFirst;
constexpr std::array kPreTokenizers = {
    PreTokenizer{"qwen2", kQwen2Pattern, NormalForm::kNfc},
    PreTokenizer{"deepseek-r1-qwen", kQwen2Pattern, NormalForm::kNfc},
    PreTokenizer{"qwen35", kQwen3_5Pattern, NormalForm::kNfc},
    PreTokenizer{"llama-bpe", kLlama3Pattern, NormalForm::kAsIs, kTakeFirst, BeginToken::kYes},
    PreTokenizer{"llama3", kLlama3Pattern, NormalForm::kAsIs, kTakeFirst, BeginToken::kYes},
    PreTokenizer{"llama-v3", kLlama3Pattern, NormalForm::kAsIs, kTakeFirst, BeginToken::kYes},
    PreTokenizer{"smaug-bpe", kLlama3Pattern},
    PreTokenizer{.name = "smollm", .pattern = R"(\p{N})", .gpt2 = Gpt2Split::kYes},
};

enum class TokenType : int64_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

template <class... Parts>
void require_key(bool good, const GgufHeader& header, std::string_view key, const Parts&... parts) {
  HR_REQUIRE(good, ErrorCode::kModelFile, header.file(), ": key '", key, "': ", parts...);
}

template <class Value>
const Value& required(const GgufHeader& header, std::string_view key, const Value* value) {
  HR_REQUIRE(value != nullptr, ErrorCode::kModelFile, header.file(), ": has no key '", key, "'");
  return *value;
}

std::string_view required_text(const GgufHeader& header, std::string_view key) {
  const auto text = header.text(key);
  HR_REQUIRE(text, ErrorCode::kModelFile, header.file(), ": has no key '", key, "'");
  return *text;
}

const PreTokenizer& pre_tokenizer_of(const GgufHeader& header) {
  const std::string_view model = required_text(header, kModel);
  HR_REQUIRE(model == "gpt2", ErrorCode::kUnsupported, header.file(), ": key '", kModel, "': is '", printable(model),
             "', which is not built; built is 'gpt2' (byte-level BPE)");
  HR_REQUIRE(header.has(kPre), ErrorCode::kModelFile, header.file(), ": has no key '", kPre,
             "', without which its tokens are not known: an old converter wrote it, take a newer file");
  const std::string_view name = required_text(header, kPre);
  const auto* const found = std::ranges::find(kPreTokenizers, name, &PreTokenizer::name);
  if (found != kPreTokenizers.end()) return *found;
  std::string built;
  for (const PreTokenizer& each : kPreTokenizers) built += str(built.empty() ? "" : ", ", each.name);
  throw Error(ErrorCode::kUnsupported, str(header.file(), ": key '", kPre, "': is '", printable(name),
                                           "', which is not built; built are: ", built));
}

// Each token's type; without types all are normal.
std::vector<TokenType> types_of(const GgufHeader& header, size_t num_tokens) {
  const std::vector<int64_t>* const stated = header.integers(kTypes);
  if (stated == nullptr) return std::vector(num_tokens, TokenType::kNormal);
  require_key(stated->size() == num_tokens, header, kTypes, "has ", stated->size(),
              " entries, expected one for each of ", num_tokens, " tokens");
  std::vector<TokenType> types;
  types.reserve(num_tokens);
  for (const int64_t type : *stated) {
    require_key(type >= 1 && type <= 6, header, kTypes, "has the type ", type, ", expected 1 to 6");
    types.push_back(static_cast<TokenType>(type));
  }
  return types;
}

bool is_without_token(std::string_view token, TokenType type, size_t id) {
  return (type == TokenType::kUnused || type == TokenType::kUserDefined) && token == str("[PAD", id, "]");
}

void read_gguf_tokens(const GgufHeader& header, TokenizerFile& file) {
  const auto& tokens = required(header, kTokens, header.texts(kTokens));
  const std::vector<TokenType> types = types_of(header, tokens.size());
  if (const auto* const scores = header.numbers("tokenizer.ggml.scores"))
    require_key(scores->size() == tokens.size(), header, "tokenizer.ggml.scores", "has ", scores->size(),
                " entries, expected one for each of ", tokens.size(), " tokens");
  file.vocab.reserve(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    require_key(!tokens[i].empty() && is_valid_utf8(tokens[i]), header, kTokens, "token ", i, " is '",
                printable(tokens[i]), "', expected UTF-8 and not empty");
    if (is_without_token(tokens[i], types[i], i)) continue;
    const auto id = static_cast<int32_t>(i);
    const bool special = types[i] == TokenType::kControl || types[i] == TokenType::kUnknown;
    if (special || types[i] == TokenType::kUserDefined)
      file.added_tokens.push_back({.id = id, .content = std::string(tokens[i]), .special = special});
    if (!special) file.vocab.push_back({std::string(tokens[i]), id});  // merges may pass through user-defined tokens
  }
}

// "left right"; a side may begin with a space.
void read_gguf_merges(const GgufHeader& header, TokenizerFile& file) {
  const auto& merges = required(header, kMerges, header.texts(kMerges));
  file.merges.reserve(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    const size_t space = merges[i].find(' ', 1);
    require_key(space != merges[i].npos && space + 1 < merges[i].size(), header, kMerges, "merge ", i, " is '",
                printable(merges[i]), "', expected 'left right'");
    file.merges.emplace_back(merges[i].substr(0, space), merges[i].substr(space + 1));
  }
}

// Adds the token that `key` names if texts have it at their begin or end.
void read_edge(const GgufHeader& header, std::string_view flag, BeginToken otherwise, std::string_view key,
               size_t num_tokens, std::vector<int32_t>& ids) {
  const bool adds = header.boolean(flag).value_or(otherwise == BeginToken::kYes);
  const auto id = header.integer(key);
  if (id)
    require_key(*id >= 0 && std::cmp_less(*id, num_tokens), header, key, "is ", *id, ", expected the id of one of ",
                num_tokens, " tokens");
  if (!adds) return;
  HR_REQUIRE(id, ErrorCode::kModelFile, header.file(), ": has no key '", key, "', and texts have this token (", flag,
             ")");
  ids.push_back(static_cast<int32_t>(*id));
}

}  // namespace

TokenizerFile read_gguf_tokenizer(const GgufHeader& header) {
  if (const auto json = header.text(kWhole)) {
    try {
      return parse_tokenizer_file(*json);
    } catch (const Error& error) {
      throw Error(error.code(), str(header.file(), ": key '", kWhole, "': ", error.what()));
    }
  }
  const PreTokenizer& pre = pre_tokenizer_of(header);
  TokenizerFile file{.whole_words = pre.whole_words,
                     .patterns = {std::string(pre.pattern)},
                     .byte_level_regex = pre.gpt2 == Gpt2Split::kYes};
  if (pre.form == NormalForm::kNfc) file.normalizer.push_back({.kind = NormalizerStep::Kind::kNfc});
  read_gguf_tokens(header, file);
  read_gguf_merges(header, file);
  const size_t num_tokens = header.texts(kTokens)->size();
  read_edge(header, "tokenizer.ggml.add_bos_token", pre.begin, "tokenizer.ggml.bos_token_id", num_tokens,
            file.prefix_ids);
  read_edge(header, "tokenizer.ggml.add_eos_token", BeginToken::kNo, "tokenizer.ggml.eos_token_id", num_tokens,
            file.suffix_ids);
  return file;
}

namespace {

bool has_normal_form(const TokenizerFile& file, NormalForm form) {
  if (form == NormalForm::kAsIs) return file.normalizer.empty();
  return file.normalizer.size() == 1 && file.normalizer[0].kind == NormalizerStep::Kind::kNfc;
}

const PreTokenizer& pre_tokenizer_like(const TokenizerFile& file) {
  const auto is_like = [&file](const PreTokenizer& pre) {
    return file.patterns.size() == 1 && file.patterns[0] == pre.pattern && has_normal_form(file, pre.form) &&
           file.whole_words == pre.whole_words && file.byte_level_regex == (pre.gpt2 == Gpt2Split::kYes);
  };
  const bool is_plain = file.alphabet == Alphabet::kBytes && !file.add_prefix_space;
  const auto* const found = std::ranges::find_if(kPreTokenizers, is_like);
  HR_REQUIRE(is_plain && found != kPreTokenizers.end(), ErrorCode::kUnsupported,
             "the tokenizer splits texts in a way that has no name in GGUF files; built are those of Qwen2, "
             "Qwen3.5, Llama 3 and SmolLM");
  return *found;
}

void require_plain(const AddedToken& token) {
  HR_REQUIRE(!token.single_word && !token.lstrip && !token.rstrip, ErrorCode::kUnsupported, "the tokenizer's token '",
             printable(token.content), "' depends on the text around it, which GGUF files cannot say");
}

struct WrittenTokens {
  std::vector<std::string> texts;
  std::vector<int32_t> types;
};

WrittenTokens tokens_of(const TokenizerFile& file, int64_t num_rows) {
  WrittenTokens tokens;
  for (int64_t id = 0; id < num_rows; ++id) tokens.texts.push_back(str("[PAD", id, "]"));
  tokens.types.assign(static_cast<size_t>(num_rows), static_cast<int32_t>(TokenType::kUnused));
  const auto put = [&](int32_t id, const std::string& text, TokenType type) {
    HR_REQUIRE(id < num_rows, ErrorCode::kModelFile, "the tokenizer's token '", printable(text), "' has id ", id,
               ", and the embedding ", num_rows, " rows");
    tokens.texts[static_cast<size_t>(id)] = text;
    tokens.types[static_cast<size_t>(id)] = static_cast<int32_t>(type);
  };
  for (const Vocabulary::Entry& entry : file.vocab) put(entry.id, entry.token, TokenType::kNormal);
  for (const AddedToken& token : file.added_tokens) {
    require_plain(token);
    put(token.id, token.content, token.special ? TokenType::kControl : TokenType::kUserDefined);
  }
  return tokens;
}

void add_edges(const TokenizerFile& file, std::vector<GgufKey>& keys) {
  HR_REQUIRE(file.prefix_ids.size() <= 1 && file.suffix_ids.empty(), ErrorCode::kUnsupported, "the tokenizer puts ",
             file.prefix_ids.size(), " tokens in front of texts and ", file.suffix_ids.size(),
             " behind them; GGUF files are written for one in front");
  keys.push_back({"tokenizer.ggml.add_bos_token", !file.prefix_ids.empty()});
  if (file.prefix_ids.empty()) return;
  keys.push_back({"tokenizer.ggml.bos_token_id", static_cast<uint32_t>(file.prefix_ids[0])});
}

}  // namespace

std::vector<GgufKey> gguf_tokenizer_keys(const TokenizerFile& file, int64_t num_rows) {
  const PreTokenizer& pre = pre_tokenizer_like(file);
  auto [texts, types] = tokens_of(file, num_rows);
  std::vector<std::string> merges;
  merges.reserve(file.merges.size());
  for (const auto& [left, right] : file.merges) merges.push_back(str(left, " ", right));
  std::vector<GgufKey> keys = {{std::string(kModel), std::string("gpt2")},
                               {std::string(kPre), std::string(pre.name)},
                               {std::string(kTokens), std::move(texts)},
                               {std::string(kTypes), std::move(types)},
                               {std::string(kMerges), std::move(merges)}};
  add_edges(file, keys);
  return keys;
}

}  // namespace headrace
