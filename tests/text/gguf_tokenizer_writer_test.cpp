// A tokenizer's keys in a GGUF file give the same tokenizer.
#include <gtest/gtest.h>

#include <algorithm>

#include "headrace/gguf/gguf_file.h"
#include "headrace/text/gguf_tokenizer.h"
#include "headrace/text/known_patterns.h"
#include "headrace/text/tokenizer.h"
#include "support/refusal.h"
#include "support/safetensors_writer.h"
#include "text/tiny_tokenizer.h"

namespace headrace {
namespace {

using test::TempDir;
using testing_support::refusal_of;
using Ids = std::vector<int32_t>;

constexpr int64_t kRows = 272;

TokenizerFile qwen_like_file(std::string_view pattern,
                             const TinyTokenizer& tokenizer = {
                                 .added_tokens = {{261, "<|end|>", "special"}, {265, "<think>", ""}}}) {
  TokenizerFile file = parse_tokenizer_file(tokenizer.json());
  file.patterns = {std::string(pattern)};
  if (pattern != kLlama3Pattern) file.normalizer = {{.kind = NormalizerStep::Kind::kNfc}};
  if (pattern == kLlama3Pattern) file.whole_words = WholeWords::kTakeFirst;
  return file;
}

TokenizerFile written_and_read(const TempDir& dir, const TokenizerFile& file) {
  GgufWriter(dir / "a.gguf", {.keys = gguf_tokenizer_keys(file, kRows), .tensors = {}}).finish();
  return read_gguf_tokenizer(GgufFile(dir / "a.gguf").header());
}

auto by_id(std::vector<Vocabulary::Entry> entries) {
  std::ranges::sort(entries, {}, &Vocabulary::Entry::id);
  std::vector<std::pair<int32_t, std::string>> out;
  for (const Vocabulary::Entry& entry : entries) out.emplace_back(entry.id, entry.token);
  return out;
}

TEST(GgufTokenizerWriter, GiveTheSameTokenizer) {
  const TempDir dir;
  for (const std::string_view pattern : {kQwen2Pattern, kQwen3_5Pattern, kLlama3Pattern}) {
    const TokenizerFile file = qwen_like_file(pattern), found = written_and_read(dir, file);
    EXPECT_EQ(found.patterns, file.patterns);
    EXPECT_EQ(found.merges, file.merges);
    EXPECT_EQ(found.whole_words, file.whole_words);
    EXPECT_EQ(found.normalizer.size(), file.normalizer.size());
    EXPECT_TRUE(found.prefix_ids.empty() && found.suffix_ids.empty());
    ASSERT_EQ(found.added_tokens.size(), 2U);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(found.added_tokens[i].id, file.added_tokens[i].id);
      EXPECT_EQ(found.added_tokens[i].content, file.added_tokens[i].content);
      EXPECT_EQ(found.added_tokens[i].special, file.added_tokens[i].special);
    }
    auto tokens = by_id(file.vocab);
    tokens.emplace_back(265, "<think>");  // merges may pass through it
    EXPECT_EQ(by_id(found.vocab), tokens);
  }
}

TEST(GgufTokenizerWriter, ASecondPatternStays) {
  const TempDir dir;
  TokenizerFile file = qwen_like_file(R"(\p{N})");
  file.normalizer.clear();
  file.byte_level_regex = true;
  EXPECT_EQ(written_and_read(dir, file).patterns, file.patterns);
  EXPECT_TRUE(written_and_read(dir, file).byte_level_regex);
}

TEST(GgufTokenizerWriter, RowsWithoutATokenArePadding) {
  const std::vector<GgufKey> keys = gguf_tokenizer_keys(qwen_like_file(kQwen2Pattern), kRows);
  const auto value = [&](std::string_view name) { return std::ranges::find(keys, name, &GgufKey::name)->value; };
  const auto tokens = std::get<std::vector<std::string>>(value("tokenizer.ggml.tokens"));
  const auto types = std::get<std::vector<int32_t>>(value("tokenizer.ggml.token_type"));
  ASSERT_EQ(tokens.size(), 272U);
  ASSERT_EQ(types.size(), 272U);
  EXPECT_EQ(tokens[271], "[PAD271]");
  EXPECT_EQ((Ids{types[65], types[261], types[265], types[271]}), (Ids{1, 3, 4, 5}));
  EXPECT_EQ(std::get<std::string>(value("tokenizer.ggml.pre")), "qwen2");
  EXPECT_EQ(std::get<std::vector<std::string>>(value("tokenizer.ggml.merges"))[4], "Ġ w");
  EXPECT_FALSE(std::get<bool>(value("tokenizer.ggml.add_bos_token")));
}

TEST(GgufTokenizerWriter, ATokenInFrontOfTextsStays) {
  const TempDir dir;
  TokenizerFile file = qwen_like_file(kLlama3Pattern);
  file.prefix_ids = {261};
  EXPECT_EQ(written_and_read(dir, file).prefix_ids, Ids{261});
  file.prefix_ids = {};
  EXPECT_EQ(written_and_read(dir, file).prefix_ids, Ids{});  // files of Llama 3 have one unless they say no
}

TEST(GgufTokenizerWriter, RefuseWhatFilesCannotSay) {
  const auto refused = [](const auto& change, int64_t rows = kRows) {
    TokenizerFile file = qwen_like_file(kQwen2Pattern);
    change(file);
    return refusal_of([&] { gguf_tokenizer_keys(file, rows); });
  };
  EXPECT_EQ(refused([](TokenizerFile& f) {}).code, std::nullopt);
  EXPECT_EQ(refused([](TokenizerFile& f) { f.patterns = {R"(\s+)"}; }).sentence,
            "the tokenizer splits texts in a way that has no name in GGUF files; built are those of Qwen2, Qwen3.5, "
            "Llama 3 and SmolLM");
  EXPECT_EQ(refused([](TokenizerFile& f) { f.whole_words = WholeWords::kTakeFirst; }).code, ErrorCode::kUnsupported);
  EXPECT_EQ(refused([](TokenizerFile& f) { f.byte_level_regex = true; }).code, ErrorCode::kUnsupported);
  EXPECT_EQ(refused([](TokenizerFile& f) { f.normalizer.clear(); }).code, ErrorCode::kUnsupported);
  EXPECT_EQ(refused([](TokenizerFile& f) { f.add_prefix_space = true; }).code, ErrorCode::kUnsupported);
  EXPECT_EQ(refused([](TokenizerFile& f) { f.alphabet = Alphabet::kCharacters; }).code, ErrorCode::kUnsupported);
  EXPECT_EQ(refused([](TokenizerFile& f) { f.added_tokens[0].lstrip = true; }).sentence,
            "the tokenizer's token '<|end|>' depends on the text around it, which GGUF files cannot say");
  EXPECT_EQ(refused([](TokenizerFile& f) { f.prefix_ids = {1, 2}; }).code, ErrorCode::kUnsupported);
  EXPECT_EQ(refused([](TokenizerFile& f) { f.suffix_ids = {1}; }).code, ErrorCode::kUnsupported);
  const auto few_rows = refused([](TokenizerFile& f) {}, 264);
  EXPECT_EQ(few_rows.code, ErrorCode::kModelFile);
  EXPECT_EQ(few_rows.sentence, "the tokenizer's token '<think>' has id 265, and the embedding 264 rows");
}

}  // namespace
}  // namespace headrace
