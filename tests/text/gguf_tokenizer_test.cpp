// The tokenizer in a GGUF file beside the tokenizer.json of the same vocabulary, for every pre-tokenizer that is named.
#include "headrace/text/gguf_tokenizer.h"

#include <gtest/gtest.h>

#include <set>

#include "headrace/text/byte_level.h"
#include "headrace/text/json_string.h"
#include "headrace/text/tokenizer.h"
#include "headrace/text/utf8.h"
#include "support/gguf_writer.h"
#include "support/random.h"
#include "support/refusal.h"
#include "support/safetensors_writer.h"

namespace headrace {
namespace {

using test::gguf_flag;
using test::gguf_key;
using test::GgufBytes;
using test::TempDir;
using testing_support::Random;

constexpr int32_t kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5;

// What a family's tokenizer.json states, spelled as there.
struct PreTokenizerCase {
  std::string name, regex, normalizer, ignore_merges, begins, use_regex = "false";
};
std::ostream& operator<<(std::ostream& out, const PreTokenizerCase& c) { return out << c.name; }

constexpr const char* kNfcJson = R"({"type":"NFC"})";
const std::string kQwen2Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string kQwen3_5Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string kLlama3Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

const std::vector<PreTokenizerCase> kPreTokenizerCases = {
    {"qwen2", kQwen2Regex, kNfcJson, "false", ""},         {"deepseek-r1-qwen", kQwen2Regex, kNfcJson, "false", ""},
    {"qwen35", kQwen3_5Regex, kNfcJson, "false", ""},      {"llama-bpe", kLlama3Regex, "null", "true", "<|begin|>"},
    {"llama3", kLlama3Regex, "null", "true", "<|begin|>"}, {"llama-v3", kLlama3Regex, "null", "true", "<|begin|>"},
    {"smaug-bpe", kLlama3Regex, "null", "false", ""},      {"smollm", R"(\p{N})", "null", "false", "", "true"},
};

// A vocabulary of all bytes, of merges drawn at random, of words that no merges make, and of added tokens.
struct DrawnVocabulary {
  std::vector<std::string> tokens;  // by id, spelled; the first 256 are bytes
  std::vector<std::pair<std::string, std::string>> merges;
  std::vector<std::string> special = {"<|begin|>", "<|end|>"}, added = {"<think>", "</think>"};

  explicit DrawnVocabulary(Random& random) {
    std::set<std::string> known;
    for (int byte = 0; byte < 256; ++byte) tokens.push_back(spelled(std::string(1, static_cast<char>(byte))));
    known.insert(tokens.begin(), tokens.end());
    for (int i = 0; i < 1500; ++i) {
      const std::string left = part(random), right = part(random);
      if (left.size() + right.size() < 16 && known.insert(left + right).second) {
        merges.emplace_back(left, right);
        tokens.push_back(left + right);
      }
    }
    for (const char* word : {"hello", "Ġworld", "123", "ĠÐ¼Ð¸ÑĢ"})
      if (known.insert(word).second) tokens.emplace_back(word);
  }

  // Often a letter, a digit, a space, or a token of several; sometimes any byte.
  std::string part(Random& random) const {
    static const std::string kFrequent = "etaoinshrdlu ETA019'.\n\xC3\xA9\xD0\xBC\xE4\xB8\xAD";
    const auto any = [&random](size_t count) { return static_cast<size_t>(random.below(static_cast<int64_t>(count))); };
    switch (random.below(4)) {
      case 0: return tokens[any(tokens.size())];
      case 1: return tokens[any(256)];
      default: return spelled(kFrequent.substr(any(kFrequent.size()), 1));
    }
  }

  std::string json(const PreTokenizerCase& c) const {
    std::string vocab, rules, extra;
    for (size_t id = 0; id < tokens.size(); ++id) vocab += str(id == 0 ? "" : ",", json_string(tokens[id]), ":", id);
    for (const auto& [left, right] : merges)
      rules += str(rules.empty() ? "" : ",", '[', json_string(left), ',', json_string(right), ']');
    size_t id = tokens.size();
    for (const auto* list : {&special, &added})
      for (const std::string& token : *list)
        extra += str(extra.empty() ? "" : ",", R"({"id":)", id++, R"(,"content":)", json_string(token),
                     R"(,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":)",
                     list == &special ? "true" : "false", "}");
    return str(R"({"version":"1.0","added_tokens":[)", extra, R"(],"normalizer":)", c.normalizer,
               R"(,"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":)",
               json_string(c.regex), R"(},"behavior":"Isolated","invert":false},{"type":"ByteLevel",)",
               R"("add_prefix_space":false,"use_regex":)", c.use_regex, R"(}]},"post_processor":)", post_processor(c),
               R"(,"decoder":{"type":"ByteLevel"},"model":{"type":"BPE","ignore_merges":)", c.ignore_merges,
               R"(,"vocab":{)", vocab, R"(},"merges":[)", rules, "]}}");
  }

  std::string post_processor(const PreTokenizerCase& c) const {
    if (c.begins.empty()) return "null";
    return str(R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<|begin|>","type_id":0}},)",
               R"({"Sequence":{"id":"A","type_id":0}}],"special_tokens":{"<|begin|>":{"id":"<|begin|>","ids":[)",
               tokens.size(), R"(],"tokens":["<|begin|>"]}}})");
  }

  // With two ids behind all tokens that none has, as converters pad a vocabulary.
  std::vector<std::string> keys(const std::string& pre) const {
    std::vector<std::string> all = tokens, rules;
    std::vector<int32_t> types(tokens.size(), kNormal);
    for (const std::string& token : special) all.push_back(token), types.push_back(kControl);
    for (const std::string& token : added) all.push_back(token), types.push_back(kUserDefined);
    for (int i = 0; i < 2; ++i) all.push_back(str("[PAD", all.size(), "]")), types.push_back(kUnused);
    for (const auto& [left, right] : merges) rules.push_back(left + " " + right);
    const auto begin = static_cast<int32_t>(tokens.size());
    return {gguf_key("tokenizer.ggml.model", "gpt2"),
            gguf_key("tokenizer.ggml.pre", pre),
            gguf_key("tokenizer.ggml.tokens", all),
            gguf_key("tokenizer.ggml.token_type", types),
            gguf_key("tokenizer.ggml.merges", rules),
            gguf_key("tokenizer.ggml.bos_token_id", begin),
            gguf_key("tokenizer.ggml.eos_token_id", begin + 1)};
  }
};

Tokenizer tokenizer_of_keys(const TempDir& dir, const std::vector<std::string>& keys) {
  test::write_file(dir / "m.gguf", GgufBytes{.keys = keys}.bytes());
  return Tokenizer::from_directory(dir / "m.gguf");
}

std::string drawn_text(Random& random, const DrawnVocabulary& vocabulary) {
  static const std::vector<std::string> kPieces = {
      " ",         "  ",           "\n",      "\r\n ",    "\t",
      "\u00A0",    "'s",           "'LL",     "don't",    "\u2019s",
      "12",        "345678",       "\u0663",  "\u00BD",   "e\u0301",
      "\u0301",    "\u0915\u094D", "\uAC00",  "\u4E2D",   "\U0001F926\U0001F3FD",
      "...",       "!?\n",         "$%",      "hello",    " world",
      "<|begin|>", "<|end|>",      "<think>", "</think>", "[PAD1]",
      "\x80",      "\xF0\x9F"};
  std::string text;
  for (int64_t i = random.below(12) + 1; i > 0; --i) {
    if (random.below(2) == 0) {
      text += kPieces[static_cast<size_t>(random.below(static_cast<int64_t>(kPieces.size())))];
    } else {
      text += bytes_of_spelling(vocabulary.part(random)).value();
    }
  }
  return text;
}

class GgufTokenizer : public testing::TestWithParam<PreTokenizerCase> {};

TEST_P(GgufTokenizer, GivesTheIdsOfTokenizerJson) {
  constexpr int kTexts = 20'000;
  Random random(7);
  const DrawnVocabulary vocabulary(random);
  const TempDir dir;
  const Tokenizer json = Tokenizer::from_json(vocabulary.json(GetParam()));
  const Tokenizer gguf = tokenizer_of_keys(dir, vocabulary.keys(GetParam().name));
  EXPECT_EQ(gguf.vocab_size(), json.vocab_size());
  for (int i = 0; i < kTexts; ++i) {
    const std::string text = drawn_text(random, vocabulary);
    const EncodeOptions options{.special_tokens = i % 2 == 0 ? SpecialTokens::kParse : SpecialTokens::kAsText};
    const std::vector<int32_t> ids = gguf.encode(text, options);
    ASSERT_EQ(ids, json.encode(text, options)) << repaired(text);
    ASSERT_EQ(gguf.decode(ids, SpecialText::kSkip), json.decode(ids, SpecialText::kSkip));
  }
}

INSTANTIATE_TEST_SUITE_P(PreTokenizers, GgufTokenizer, testing::ValuesIn(kPreTokenizerCases), [](const auto& row) {
  std::string name = row.param.name;
  std::ranges::replace(name, '-', '_');
  return name;
});

// Keys of a small good tokenizer, with some replaced, left out (an empty value), or added.
class GgufTokenizerRules : public testing::Test {
 protected:
  GgufTokenizerRules() {
    std::vector<std::string> tokens;
    for (int byte = 0; byte < 256; ++byte) tokens.push_back(spelled(std::string(1, static_cast<char>(byte))));
    types_.assign(256, kNormal);
    for (const char* token : {"<s>", "</s>"}) tokens.emplace_back(token), types_.push_back(kControl);
    tokens.emplace_back("he"), types_.push_back(kNormal);
    set("model", gguf_key("tokenizer.ggml.model", "gpt2"));
    set("pre", gguf_key("tokenizer.ggml.pre", "qwen2"));
    set("tokens", gguf_key("tokenizer.ggml.tokens", tokens));
    set("token_type", gguf_key("tokenizer.ggml.token_type", types_));
    set("merges", gguf_key("tokenizer.ggml.merges", std::vector<std::string>{"h e"}));
  }

  void set(const std::string& name, const std::string& key) { keys_[name] = key; }
  Tokenizer tokenizer() const {
    std::vector<std::string> keys;
    for (const auto& [name, key] : keys_)
      if (!key.empty()) keys.push_back(key);
    return tokenizer_of_keys(dir_, keys);
  }
  std::string refusal() const {
    const std::string file = (dir_ / "m.gguf").string() + ": ";
    const std::string sentence = testing_support::refusal_of([this] { tokenizer(); }).sentence;
    return sentence.starts_with(file) ? sentence.substr(file.size()) : "without the file's name: " + sentence;
  }

  TempDir dir_;
  std::map<std::string, std::string> keys_;
  std::vector<int32_t> types_;
};

TEST_F(GgufTokenizerRules, TextsBeginAndEndWithTokensIfTheFileSaysSo) {
  EXPECT_EQ(tokenizer().encode("he"), std::vector<int32_t>{258});
  set("bos", gguf_key("tokenizer.ggml.bos_token_id", 256));
  set("eos", gguf_key("tokenizer.ggml.eos_token_id", 257));
  EXPECT_EQ(tokenizer().encode("he"), std::vector<int32_t>{258});
  set("add_bos", gguf_flag("tokenizer.ggml.add_bos_token", true));
  set("add_eos", gguf_flag("tokenizer.ggml.add_eos_token", true));
  EXPECT_EQ(tokenizer().encode("he"), (std::vector<int32_t>{256, 258, 257}));
  set("pre", gguf_key("tokenizer.ggml.pre", "llama-bpe"));
  set("add_bos", gguf_flag("tokenizer.ggml.add_bos_token", false));
  set("add_eos", "");
  EXPECT_EQ(tokenizer().encode("he"), std::vector<int32_t>{258});
  set("add_bos", "");
  EXPECT_EQ(tokenizer().encode("he"), (std::vector<int32_t>{256, 258})) << "Llama 3's begin token, without a key";
}

TEST_F(GgufTokenizerRules, AWholeTokenizerJsonInTheFileIsUsedInstead) {
  set("pre", gguf_key("tokenizer.ggml.pre", "of-nobody"));
  set("json", gguf_key("tokenizer.huggingface.json", "{"));
  EXPECT_TRUE(refusal().starts_with("key 'tokenizer.huggingface.json': the file is no JSON")) << refusal();
  Random random(1);
  set("json", gguf_key("tokenizer.huggingface.json", DrawnVocabulary(random).json(kPreTokenizerCases.front())));
  EXPECT_TRUE(tokenizer().token_to_id("</think>").has_value());
}

TEST_F(GgufTokenizerRules, AreRefusedByName) {
  const std::string tokens = keys_["tokens"];
  const auto refused = [this](const std::string& name, const std::string& key) {
    const std::string good = std::exchange(keys_[name], key), sentence = refusal();
    set(name, good);
    return sentence;
  };
  EXPECT_EQ(refused("model", ""), "has no key 'tokenizer.ggml.model'");
  EXPECT_EQ(refused("model", gguf_key("tokenizer.ggml.model", "llama")),
            "key 'tokenizer.ggml.model': is 'llama', which is not built; built is 'gpt2' (byte-level BPE)");
  EXPECT_EQ(refused("pre", ""),
            "has no key 'tokenizer.ggml.pre', without which its tokens are not known: an old "
            "converter wrote it, take a newer file");
  EXPECT_EQ(refused("pre", gguf_key("tokenizer.ggml.pre", "tekken")),
            "key 'tokenizer.ggml.pre': is 'tekken', which is not built; built are: qwen2, deepseek-r1-qwen, qwen35, "
            "llama-bpe, llama3, llama-v3, smaug-bpe, smollm");
  EXPECT_EQ(refused("tokens", ""), "has no key 'tokenizer.ggml.tokens'");
  EXPECT_EQ(refused("tokens", gguf_key("tokenizer.ggml.tokens", 1)),
            "key 'tokenizer.ggml.tokens': has another type, expected an array of texts");
  EXPECT_EQ(refused("tokens", gguf_key("tokenizer.ggml.tokens", std::vector<std::string>(259))),
            "key 'tokenizer.ggml.tokens': token 0 is '', expected UTF-8 and not empty");
  EXPECT_EQ(refused("tokens", gguf_key("tokenizer.ggml.tokens", std::vector<std::string>(259, "\xFF"))),
            "key 'tokenizer.ggml.tokens': token 0 is '\\xff', expected UTF-8 and not empty");
  EXPECT_EQ(refused("tokens", gguf_key("tokenizer.ggml.tokens", std::vector<std::string>(259, "a"))),
            "token 'a' has ids 0 and 1");
  EXPECT_EQ(refused("token_type", gguf_key("tokenizer.ggml.token_type", std::vector<int32_t>(3, 1))),
            "key 'tokenizer.ggml.token_type': has 3 entries, expected one for each of 259 tokens");
  EXPECT_EQ(refused("token_type", gguf_key("tokenizer.ggml.token_type", std::vector<int32_t>(259, 7))),
            "key 'tokenizer.ggml.token_type': has the type 7, expected 1 to 6");
  EXPECT_TRUE(refused("token_type", gguf_key("tokenizer.ggml.token_type", std::vector<int32_t>(259, kControl)))
                  .ends_with("is special, but it is the spelling of byte 0, which any text may hold"));
  EXPECT_EQ(refused("merges", ""), "has no key 'tokenizer.ggml.merges'");
  EXPECT_EQ(refused("merges", gguf_key("tokenizer.ggml.merges", std::vector<std::string>{"he"})),
            "key 'tokenizer.ggml.merges': merge 0 is 'he', expected 'left right'");
  EXPECT_EQ(refused("merges", gguf_key("tokenizer.ggml.merges", std::vector<std::string>{"h x"})),
            "model.merges[0]: its result 'hx' is not in the vocabulary");
  EXPECT_EQ(refused("bos", gguf_key("tokenizer.ggml.bos_token_id", 259)),
            "key 'tokenizer.ggml.bos_token_id': is 259, expected the id of one of 259 tokens");
  EXPECT_EQ(refused("add_bos", gguf_flag("tokenizer.ggml.add_bos_token", true)),
            "has no key 'tokenizer.ggml.bos_token_id', and texts have this token (tokenizer.ggml.add_bos_token)");
  EXPECT_EQ(refused("unused", gguf_key("tokenizer.ggml.scores", std::vector<int32_t>{1})),
            "key 'tokenizer.ggml.scores': has another type, expected an array of floats");
  EXPECT_EQ(refused("other", ""), "without the file's name: ") << "the good one";
}

}  // namespace
}  // namespace headrace
