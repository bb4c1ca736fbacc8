#include "headrace/text/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "headrace/core/error.h"
#include "text/tiny_tokenizer.h"

namespace headrace {
namespace {

using Ids = std::vector<int32_t>;

constexpr EncodeOptions kParsed{.special_tokens = SpecialTokens::kParse};
constexpr int32_t kHello = 259, kEnd = 300, kThink = 301;

Tokenizer make(const TinyTokenizer& tiny = {}) { return Tokenizer::from_json(tiny.json()); }

TEST(Tokenizer, OfBytesHasATokenForEachByte) {
  const Tokenizer tokenizer = Tokenizer::of_bytes();
  EXPECT_EQ(tokenizer.vocab_size(), 256);
  EXPECT_EQ(tokenizer.encode("a é\n"), (std::vector<int32_t>{'a', ' ', 0xC3, 0xA9, '\n'}));
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{'a', 0xC3, 0xA9, 0}), std::string("aé\0", 4));
}

TEST(Tokenizer, MergesByRank) { EXPECT_EQ(make().encode("hello w"), (Ids{kHello, 260})); }

TEST(Tokenizer, ReadsMergesAsPairsToo) {
  TinyTokenizer tiny;
  tiny.merges = R"([["h","e"],["l","l"],["he","ll"],["hell","o"],["Ġ","w"]])";
  EXPECT_EQ(make(tiny).encode("hello w"), (Ids{kHello, 260}));
}

TEST(Tokenizer, UserTextNeverBecomesASpecialToken) {
  const Tokenizer tokenizer = make();
  const Ids ids = tokenizer.encode("a<|end|>b");
  EXPECT_EQ(ids, (Ids{'a', '<', '|', 'e', 'n', 'd', '|', '>', 'b'}));
  EXPECT_EQ(tokenizer.decode(ids, SpecialText::kSkip), "a<|end|>b");
}

TEST(Tokenizer, SpecialTokensAreParsedWhenAsked) {
  EXPECT_EQ(make().encode("a<|end|>b", kParsed), (Ids{'a', kEnd, 'b'}));
}

TEST(Tokenizer, OtherAddedTokensMatchEitherWay) {
  EXPECT_EQ(make().encode("a<think>"), (Ids{'a', kThink}));
  EXPECT_EQ(make().encode("a<think>", kParsed), (Ids{'a', kThink}));
}

TEST(Tokenizer, added_token_as_whole_word) {  // ignore_merges looked up words among the added tokens, too
  TinyTokenizer tiny;
  tiny.ignore_merges = "true";
  tiny.added_tokens = {{300, "END", "special"}, {301, "only", "single_word"}};
  EXPECT_EQ(make(tiny).encode("END"), (Ids{'E', 'N', 'D'}));
  EXPECT_EQ(make(tiny).encode("9only"), (Ids{'9', 'o', 'n', 'l', 'y'}));
}

TEST(Tokenizer, NoMergeMakesASpecialToken) {
  TinyTokenizer tiny;
  tiny.added_tokens = {{kHello, "hello", "special"}};
  for (const char* ignore_merges : {"false", "true"}) {
    tiny.ignore_merges = ignore_merges;
    EXPECT_EQ(make(tiny).encode("hello"), (Ids{258, 'o'})) << ignore_merges;
    EXPECT_EQ(make(tiny).encode("hello", kParsed), (Ids{kHello})) << ignore_merges;
  }
}

TEST(Tokenizer, IgnoreMergesTakesAWholeWordThatNoMergeMakes) {
  TinyTokenizer tiny;
  tiny.words.push_back("xyz");
  EXPECT_EQ(make(tiny).encode("xyz"), (Ids{'x', 'y', 'z'}));
  tiny.ignore_merges = "true";
  EXPECT_EQ(make(tiny).encode("xyz"), (Ids{261}));
}

TEST(Tokenizer, PostProcessorAddsTokensUnlessTold) {
  TinyTokenizer tiny;
  tiny.post_processor = R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<|end|>","type_id":0}},
      {"Sequence":{"id":"A","type_id":0}},{"SpecialToken":{"id":"x","type_id":0}}],"pair":[],
      "special_tokens":{"<|end|>":{"id":"<|end|>","ids":[300],"tokens":["<|end|>"]},"x":{"id":"x","ids":[120,121],"tokens":[]}}})";
  EXPECT_EQ(make(tiny).encode(""), (Ids{kEnd, 120, 121}));
  EXPECT_EQ(make(tiny).encode("a"), (Ids{kEnd, 'a', 120, 121}));
  EXPECT_EQ(make(tiny).encode("a", {.add_special_tokens = AddSpecialTokens::kNo}), (Ids{'a'}));
}

TEST(Tokenizer, NormalizesBetweenAddedTokens) {
  TinyTokenizer tiny;
  tiny.normalizer = R"({"type":"Sequence","normalizers":[{"type":"NFC"}]})";
  EXPECT_EQ(make(tiny).decode(make(tiny).encode("e\u0301<think>\u0301")), "\u00e9<think>\u0301");
}

TEST(Tokenizer, nfc_lost_a_character) {  // U+11A7 behind a syllable of Hangul, which some utf8proc take for a final
  TinyTokenizer tiny;
  tiny.normalizer = R"({"type":"NFC"})";
  const Tokenizer tokenizer = make(tiny);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("\uAC00\u11A7\u11A8")), "\uAC00\u11A7\u11A8");
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("\u1100\u1161\u11A7e\u0301")), "\uAC00\u11A7\u00E9");
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("\uAC00\u11A8")), "\uAC01");
}

TEST(Tokenizer, BytesThatAreNoTextCountAsReplacementCharacters) {
  const Tokenizer tokenizer = make();
  EXPECT_EQ(tokenizer.encode("a\xFF\xE2\x82z"), tokenizer.encode("a\uFFFD\uFFFDz"));
}

TEST(Tokenizer, DecodeReplacesHalvesOfCharacters) {
  const Tokenizer tokenizer = make();
  EXPECT_EQ(tokenizer.decode(Ids{0xE2, 0x82, 0xAC}), "€");
  EXPECT_EQ(tokenizer.decode(Ids{0xE2, 0x82, 'a', 0xE2, 0x82}), "\uFFFDa\uFFFD");
  EXPECT_EQ(tokenizer.decode(Ids{0xE2, kEnd, 0x82, 0xAC}, SpecialText::kSkip), "€");
}

TEST(Tokenizer, AnIdWithoutATokenSpellsNothing) {
  const Tokenizer tokenizer = make();
  EXPECT_EQ(tokenizer.vocab_size(), 302);
  EXPECT_EQ(tokenizer.decode(Ids{'a', 280, 302, 151935, -1, 'b'}), "ab");
  EXPECT_EQ(tokenizer.bytes_of(280), "");
  EXPECT_FALSE(tokenizer.is_special(302));
  EXPECT_FALSE(tokenizer.id_to_token(280));
}

TEST(Tokenizer, NamesItsTokens) {
  const Tokenizer tokenizer = make();
  EXPECT_EQ(tokenizer.token_to_id("<|end|>"), kEnd);
  EXPECT_EQ(tokenizer.token_to_id("Ġw"), 260);
  EXPECT_EQ(tokenizer.token_to_id(" w"), std::nullopt);
  EXPECT_EQ(tokenizer.id_to_token(260), "Ġw");
  EXPECT_EQ(tokenizer.bytes_of(260), " w");
  EXPECT_TRUE(tokenizer.is_special(kEnd));
  EXPECT_FALSE(tokenizer.is_special(kThink));
}

// Each of these takes minutes where a step is quadratic: merging, normalizing, checking UTF-8 at every match, looking
// for the white space around added tokens that are white space themselves.
TEST(Tokenizer, LongTextsTakeLinearTime) {
  TinyTokenizer tiny;
  tiny.normalizer = R"({"type":"NFC"})";
  tiny.words = {"aa", "aaaa"};
  tiny.merges = R"(["a a", "aa aa"])";
  tiny.added_tokens = {{300, "<|end|>", "special"}, {301, "\u2003", "lstrip"}, {302, "\u3000", "rstrip"}};
  const Tokenizer tokenizer = make(tiny);
  constexpr size_t kLength = 1 << 20;
  EXPECT_EQ(tokenizer.encode(std::string(kLength, 'a')), Ids(kLength / 4, 257));
  for (const std::string unit :
       {" ", "1", "a ", "\n ", "\u0323\u0301", "\u0301\u0323", "\u2003", "\u3000", "<|end|>", "😀", "\xFF"}) {
    std::string text;
    while (text.size() < kLength) text += unit;
    const Ids ids = tokenizer.encode(text);
    EXPECT_GT(ids.size(), kLength / 8) << unit;
    EXPECT_EQ(tokenizer.decode(ids).size(), unit == "\xFF" ? 3 * kLength : text.size()) << unit;
  }
}

TEST(Tokenizer, ThreadsMayEncodeAtOnce) {
  const Tokenizer tokenizer = make();
  std::vector<Ids> results(4);
  std::vector<std::jthread> threads;
  for (Ids& result : results)
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) result = tokenizer.encode("hello <think> w\xC3\xA9lt");
    });
  threads.clear();
  for (const Ids& result : results) EXPECT_EQ(result, results.front());
}

TEST(Tokenizer, SurvivesBeingMoved) {
  Tokenizer first = make();
  const std::string_view bytes = first.bytes_of(260);
  const Tokenizer second = std::move(first);
  EXPECT_EQ(second.encode("hello"), (Ids{kHello}));
  EXPECT_EQ(bytes.data(), second.bytes_of(260).data());
}

}  // namespace
}  // namespace headrace
