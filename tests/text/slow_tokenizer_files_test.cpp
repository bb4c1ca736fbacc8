// A tokenizer without tokenizer.json: what is read from its three files, and what is turned away.
#include "headrace/text/slow_tokenizer_files.h"

#include <gtest/gtest.h>

#include "headrace/text/tokenizer.h"
#include "support/refusal.h"
#include "support/safetensors_writer.h"
#include "text/tiny_tokenizer.h"

namespace headrace {
namespace {

const std::string kConfig = R"({"tokenizer_class":"DreamTokenizer","add_prefix_space":false,"added_tokens_decoder":)"
                            R"({"300":{"content":"<|end|>","lstrip":false,"normalized":false,"rstrip":false,)"
                            R"("single_word":false,"special":true}}})";

std::string vocab() { return str("{", TinyTokenizer{}.vocab(), "}"); }

TEST(SlowTokenizerFiles, AreReadAsTheCodeReadsThem) {
  const TokenizerFile file = parse_slow_tokenizer_files(vocab(), "#version: 0.2\nh e\r\nl l\n\n# #\n", kConfig);
  EXPECT_EQ(file.vocab.size(), 261u);
  ASSERT_EQ(file.merges.size(), 3u);
  EXPECT_EQ(file.merges[0], (std::pair<std::string, std::string>("h", "e")));
  EXPECT_EQ(file.merges[2].first, "#");  // a comment only in the first line
  ASSERT_EQ(file.added_tokens.size(), 1u);
  EXPECT_EQ(file.added_tokens[0].id, 300);
  EXPECT_TRUE(file.added_tokens[0].special);
}

// transformers writes int(1e30) where there is no limit.
TEST(SlowTokenizerFiles, NumbersThatPythonWritesStandInKeysThatNobodyReads) {
  for (const char* odd : {"1000000000000000019884624838656", "NaN", "-Infinity", "18446744073709551616"}) {
    std::string config = kConfig;
    config.insert(1, str(R"("model_max_length":)", odd, ","));
    EXPECT_EQ(parse_slow_tokenizer_files(vocab(), "", config).added_tokens.size(), 1u) << odd;
    config = kConfig;
    config.replace(config.find("\"DreamTokenizer\""), 16, odd);
    EXPECT_EQ(testing_support::refusal_of([&] { parse_slow_tokenizer_files(vocab(), "", config); }).sentence,
              "tokenizer_config.json.tokenizer_class is not a string");
  }
}

TEST(SlowTokenizerFiles, OfAKeyThatStandsTwiceTheLastValueCountsAsInPython) {
  std::string config = kConfig;
  config.insert(1, R"("tokenizer_class":"LlamaTokenizer",)");
  EXPECT_EQ(parse_slow_tokenizer_files(vocab(), "", config).added_tokens.size(), 1u);
}

TEST(SlowTokenizerFiles, OtherClassesAndBrokenLinesAreRefusedByName) {
  const auto refusal = [](const std::string& merges, const std::string& config) {
    return testing_support::refusal_of([&] { parse_slow_tokenizer_files(vocab(), merges, config); }).sentence;
  };
  EXPECT_NE(refusal("", R"({"tokenizer_class":"LlamaTokenizer"})").find("'LlamaTokenizer'"), std::string::npos);
  EXPECT_NE(refusal("", R"({})").find("tokenizer_class"), std::string::npos);
  EXPECT_NE(refusal("", R"({"tokenizer_class":"Qwen2Tokenizer","add_bos_token":true})").find("add_bos_token"),
            std::string::npos);
  EXPECT_NE(refusal("h e\nh e l\n", kConfig).find("merges.txt: line 2"), std::string::npos);
  std::string key = kConfig;
  key.replace(key.find("300"), 3, "3x0");
  EXPECT_NE(refusal("", key).find("'3x0'"), std::string::npos);
}

TEST(SlowTokenizerFiles, AMergeOfUnknownTokensNamesBothFiles) {
  const test::TempDir folder;
  test::write_file(folder / "vocab.json", vocab());
  test::write_file(folder / "tokenizer_config.json", kConfig);
  test::write_file(folder / "merges.txt", "#version: 0.2\nh e\nq q\n");
  EXPECT_EQ(
      testing_support::refusal_of([&] { Tokenizer::from_directory(folder.path()); }).sentence,
      (folder / "merges.txt").string() + " and vocab.json: model.merges[1]: its result 'qq' is not in the vocabulary");
}

}  // namespace
}  // namespace headrace
