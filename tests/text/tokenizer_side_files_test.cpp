// Tokens of the files beside tokenizer.json. What is expected is what AutoTokenizer of transformers 4.57 and 5.24 gave
// for the same files.
#include "headrace/text/tokenizer_side_files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "headrace/text/tokenizer.h"
#include "support/refusal.h"
#include "text/tiny_tokenizer.h"

namespace headrace {
namespace {

constexpr EncodeOptions kSideParsed{.special_tokens = SpecialTokens::kParse};

// Vocabulary 0 to 260; <|end|> 261, which is special, and <think> 262, which is not.
TokenizerFile tiny_file() {
  TinyTokenizer tiny;
  tiny.added_tokens = {{261, "<|end|>", "special"}, {262, "<think>", ""}};
  return parse_tokenizer_file(tiny.json());
}

std::vector<AddedToken> added(const TokenizerSideFiles& texts) {
  TokenizerFile file = tiny_file();
  add_side_files(texts, file);
  return file.added_tokens;
}

std::string decoder(const std::string& id, const std::string& content, const std::string& flags) {
  return str(R"("added_tokens_decoder":{")", id, R"(":{"content":")", content, "\"", flags, "}}");
}

TEST(TokenizerSideFiles, WithoutThemATokenizerIsThatOfItsFile) { EXPECT_EQ(added({}).size(), 2u); }

TEST(TokenizerSideFiles, TheDecoderOfTheConfigStatesTokensThatTokenizerJsonLacks) {
  const auto tokens = added({.tokenizer_config = "{" + decoder("263", "<|turn|>", R"(,"special":true)") + "}"});
  ASSERT_EQ(tokens.size(), 3u);
  EXPECT_EQ(tokens[2].id, 263);
  EXPECT_EQ(tokens[2].content, "<|turn|>");
  EXPECT_TRUE(tokens[2].special);
  EXPECT_FALSE(tokens[2].normalized);
}

TEST(TokenizerSideFiles, TheDecodersFlagsGoOverThoseOfTokenizerJsonButASpecialTokenStaysOne) {
  const auto end =
      added({.tokenizer_config = "{" + decoder("261", "<|end|>", R"(,"special":false,"rstrip":true)") + "}"});
  EXPECT_EQ(end.size(), 2u);
  EXPECT_TRUE(end[0].special);
  EXPECT_TRUE(end[0].rstrip);
  const auto think =
      added({.tokenizer_config = "{" + decoder("262", "<think>", R"(,"special":true,"lstrip":true)") + "}"});
  EXPECT_TRUE(think[1].special);
  EXPECT_TRUE(think[1].lstrip);
  EXPECT_EQ(added({.tokenizer_config = "{" + decoder("999", "<think>", "") + "}"})[1].id, 262) << "tokenizer.json's";
}

TEST(TokenizerSideFiles, ATokenThatIsStatedWithAnIdThatNobodyWouldGiveItIsRefused) {
  const auto refusal = testing_support::refusal_of(
      [] { added({.tokenizer_config = "{" + decoder("300", "<|turn|>", R"(,"special":true)") + "}"}); });
  EXPECT_EQ(refusal.code, ErrorCode::kModelFile);
  EXPECT_EQ(refusal.sentence,
            "tokenizer_config.json.added_tokens_decoder['300'] is '<|turn|>', which is not in tokenizer.json; expected "
            "the next id, 263, which transformers gives it");
  const auto hex = testing_support::refusal_of(
      [] { added({.tokenizer_config = "{" + decoder("300", R"(a\u0000b)", R"(,"special":true)") + "}"}); });
  EXPECT_TRUE(hex.sentence.starts_with(R"(tokenizer_config.json.added_tokens_decoder['300'] is 'a\x00b', which)"));
}

TEST(TokenizerSideFiles, AddedTokensJsonCountsWhereTheConfigHasNoDecoder) {
  const std::string file = R"({"<b>":264,"<|turn|>":263})";
  const auto plain = added({.added_tokens = file});
  ASSERT_EQ(plain.size(), 4u);
  EXPECT_EQ(plain[2].content, "<|turn|>");
  EXPECT_FALSE(plain[2].special);
  EXPECT_TRUE(plain[2].normalized);
  EXPECT_EQ(plain[3].id, 264);
  const auto named = added({.tokenizer_config = R"({"eos_token":"<|turn|>"})", .added_tokens = file});
  EXPECT_TRUE(named[2].special);
  EXPECT_FALSE(named[2].normalized);
  const std::string config = "{" + decoder("261", "<|end|>", "") + "}";
  EXPECT_EQ(added({.tokenizer_config = config, .added_tokens = file}).size(), 2u);
}

TEST(TokenizerSideFiles, NamedTokensAreSpecialAndGetTheNextIds) {
  for (const char* config :
       {R"({"eos_token":"<x>","model_max_length":1000000000000000019884624838656})",
        R"({"mask_token":{"__type":"AddedToken","content":"<x>"}})", R"({"additional_special_tokens":["<x>"]})",
        R"({"extra_special_tokens":["<x>"]})", R"({"extra_special_tokens":{"image_token":"<x>"}})"}) {
    for (const TokenizerSideFiles& texts :
         {TokenizerSideFiles{.tokenizer_config = config}, TokenizerSideFiles{.special_tokens_map = config}}) {
      const auto tokens = added(texts);
      ASSERT_EQ(tokens.size(), 3u) << config;
      EXPECT_EQ(tokens[2].id, 263) << config;
      EXPECT_EQ(tokens[2].content, "<x>") << config;
      EXPECT_TRUE(tokens[2].special) << config;
    }
  }
  EXPECT_EQ(added({.tokenizer_config = R"({"eos_token":null,"pad_token":"<|end|>","bos_token":""})"}).size(), 2u);
  EXPECT_TRUE(added({.tokenizer_config = R"({"eos_token":"<think>"})"})[1].special);
  const auto of_model = added({.tokenizer_config = R"({"pad_token":"hello"})"});
  ASSERT_EQ(of_model.size(), 3u);
  EXPECT_EQ(of_model[2].id, 259);
  EXPECT_EQ(added({.tokenizer_config = R"({"pad_token":"!"})"}).size(), 2u) << "a byte, which any text may hold";
}

TEST(TokenizerSideFiles, TheSpecialTokensMapGoesOverTheConfigWhereThatHasNoDecoder) {
  const std::string map = R"({"eos_token":"<m>"})";
  const auto tokens = added({.tokenizer_config = R"({"eos_token":"<c>"})", .special_tokens_map = map});
  ASSERT_EQ(tokens.size(), 3u);
  EXPECT_EQ(tokens[2].content, "<m>");
  const std::string config = "{" + decoder("261", "<|end|>", "") + R"(,"eos_token":"<|end|>"})";
  EXPECT_EQ(added({.tokenizer_config = config, .special_tokens_map = map}).size(), 2u);
}

TEST(TokenizerSideFiles, LlamaClassesSayWhetherATextBeginsWithItsToken) {
  const auto file_of = [](const std::string& config) {
    TokenizerFile file = tiny_file();
    file.prefix_ids = {7};
    add_side_files({.tokenizer_config = config}, file);
    return file;
  };
  const std::string llama = R"("tokenizer_class":"LlamaTokenizerFast","bos_token":"<|end|>","eos_token":"<think>")";
  EXPECT_EQ(file_of("{" + llama + "}").prefix_ids, std::vector<int32_t>{7});
  EXPECT_EQ(file_of("{" + llama + R"(,"add_bos_token":true})").prefix_ids, std::vector<int32_t>{261});
  EXPECT_TRUE(file_of("{" + llama + R"(,"add_bos_token":false})").prefix_ids.empty());
  EXPECT_EQ(file_of("{" + llama + R"(,"add_eos_token":true})").suffix_ids, std::vector<int32_t>{262});
  EXPECT_EQ(file_of(R"({"tokenizer_class":"GPT2Tokenizer","bos_token":"<|end|>","add_bos_token":true})").prefix_ids,
            std::vector<int32_t>{7});
}

TEST(TokenizerSideFiles, AreReadFromADirectory) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "tokenizer_side_files_test";
  std::filesystem::create_directories(folder);
  TinyTokenizer tiny;
  tiny.added_tokens = {{261, "<|end|>", "special"}};
  std::ofstream(folder / "tokenizer.json") << tiny.json();
  std::ofstream(folder / "tokenizer_config.json")
      << "{" + decoder("262", "<|turn|>", R"(,"special":true)") + R"(,"eos_token":"<|turn|>"})";
  const Tokenizer tokenizer = Tokenizer::from_directory(folder);
  EXPECT_EQ(tokenizer.vocab_size(), 263);
  EXPECT_TRUE(tokenizer.is_special(262));
  EXPECT_EQ(tokenizer.encode("hello<|turn|>", kSideParsed), (std::vector<int32_t>{259, 262}));
  EXPECT_EQ(tokenizer.encode("<|turn|>").size(), 8u) << "text of a user";
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{259, 262}, SpecialText::kSkip), "hello");
  std::ofstream(folder / "special_tokens_map.json") << "[1]";
  EXPECT_EQ(testing_support::refusal_of([&] { Tokenizer::from_directory(folder); }).sentence,
            folder.string() + ": special_tokens_map.json is not a JSON object");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace headrace
