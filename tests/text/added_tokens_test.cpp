#include "headrace/text/added_tokens.h"

#include <gtest/gtest.h>

#include "headrace/core/error.h"

namespace headrace {
namespace {

// "text|[7]token|text": the segments, with the ids of those that are tokens.
std::string split(std::vector<AddedToken> tokens, std::string_view text,
                  SpecialTokens special = SpecialTokens::kParse) {
  std::string out, all;
  for (const auto& segment : AddedTokenMatcher(std::move(tokens)).split(text, special)) {
    out += str(out.empty() ? "" : "|", segment.id ? str("[", *segment.id, "]") : "", segment.text);
    all += segment.text;
  }
  EXPECT_EQ(all, text);
  return out;
}

TEST(AddedTokens, LongestWins) {
  const std::vector<AddedToken> tokens = {
      {.id = 1, .content = "<a>"}, {.id = 2, .content = "<a><b>"}, {.id = 3, .content = "<b>"}};
  EXPECT_EQ(split(tokens, "x<a><b><a><b"), "x|[2]<a><b>|[1]<a>|<b");
  EXPECT_EQ(split(tokens, ""), "");
  EXPECT_EQ(split({}, "abc"), "abc");
}

TEST(AddedTokens, SpecialOnesAreTextUnlessParsed) {
  const std::vector<AddedToken> tokens = {{.id = 1, .content = "<a>", .special = true}, {.id = 2, .content = "<b>"}};
  EXPECT_EQ(split(tokens, "<a><b>"), "[1]<a>|[2]<b>");
  EXPECT_EQ(split(tokens, "<a><b>", SpecialTokens::kAsText), "<a>|[2]<b>");
}

TEST(AddedTokens, StripTakesWhiteSpace) {
  EXPECT_EQ(split({{.id = 1, .content = "<m>", .lstrip = true}}, "a \u3000<m> <m>"), "a|[1] \u3000<m>|[1] <m>");
  EXPECT_EQ(split({{.id = 1, .content = "<m>", .rstrip = true}}, "a <m> \n<m> b"), "a |[1]<m> \n|[1]<m> |b");
  EXPECT_EQ(split({{.id = 1, .content = "<m>", .lstrip = true, .rstrip = true}}, " <m> <m> "), "[1] <m> |[1]<m> ");
}

// The package finds tokens before it strips, so the token before has taken this one's text and both count.
TEST(AddedTokens, whitespace_token_after_rstrip) {
  const AddedTokenMatcher matcher({{.id = 1, .content = "<m>", .rstrip = true}, {.id = 2, .content = "\n"}});
  const auto segments = matcher.split("<m> \n x\n", SpecialTokens::kParse);
  ASSERT_EQ(segments.size(), 4u);
  EXPECT_EQ(segments[0].id, 1);
  EXPECT_EQ(segments[1].id, 2);
  EXPECT_EQ(segments[2].text, " x");  // the space is text again
  EXPECT_EQ(segments[3].id, 2);
}

TEST(AddedTokens, SingleWordStandsAlone) {
  const std::vector<AddedToken> tokens = {{.id = 1, .content = "cat", .single_word = true}};
  EXPECT_EQ(split(tokens, "cat, cat"), "[1]cat|, |[1]cat");
  for (const char* word :
       {"cats", "_cat", "1cat", "cat\u0301", "écat", "\u24b6cat", "cat\u0e01", "cat\u200d", "Ⅷcat", "\U0002ebf0cat"})
    EXPECT_EQ(split(tokens, word), word);
  EXPECT_EQ(split(tokens, "½cat"), "½|[1]cat");
}

}  // namespace
}  // namespace headrace
