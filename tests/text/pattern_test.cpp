#include "headrace/text/pattern.h"

#include <gtest/gtest.h>

#include "headrace/core/error.h"
#include "headrace/text/pattern_syntax.h"

namespace headrace {
namespace {

using Pieces = std::vector<std::string_view>;

Pieces split_by(std::string_view regex, std::string_view text) {
  Pieces pieces;
  Pattern(regex).split(text, pieces);
  return pieces;
}

TEST(Pattern, KeepsMatchesAndWhatIsBetween) {
  EXPECT_EQ(split_by(R"(\p{L}+)", "ab12cd "), (Pieces{"ab", "12", "cd", " "}));
  EXPECT_EQ(split_by("x", ""), Pieces{});
  EXPECT_EQ(split_by("x", "abc"), (Pieces{"abc"}));
}

TEST(Pattern, EmptyMatchesSplitAndEnd) { EXPECT_EQ(split_by("x*", "axé"), (Pieces{"a", "x", "é"})); }

TEST(Pattern, SpaceIsUnicodeWhiteSpaceInAndOutOfClasses) {
  for (const char* space : {"\u00a0", "\u3000", "\u0085", "\u2028", "\u1680", "\x0B", "\x1F"}) {
    const bool is_space = std::string_view(space) != "\x1F";
    const std::string text = std::string("a") + space + "b";
    const Pieces apart{"a", space, "b"}, whole{text};
    EXPECT_EQ(split_by(R"(\s+)", text), is_space ? apart : whole);
    EXPECT_EQ(split_by(R"([\s]+)", text), is_space ? apart : whole);
    EXPECT_EQ(split_by(R"([^\s]+)", text), is_space ? apart : whole);
    EXPECT_EQ(split_by(R"(\S+)", text), is_space ? apart : whole);
    EXPECT_EQ(split_by(R"([\S]+)", text), is_space ? apart : whole);
  }
  EXPECT_EQ(split_by(R"(\s+)", "a\u180eb\u200bc"), (Pieces{"a\u180eb\u200bc"}));
}

TEST(Pattern, CategoriesAreThoseOfUnicode16) {
  const std::string text = "1\U0002ebf0\U00031350a";  // CJK extensions I (Unicode 15.1) and H (Unicode 15)
  const Pieces apart{"1", std::string_view(text).substr(1)};
  for (const char* regex : {R"(\p{L}+)", R"([\p{L}]+)", R"([^\p{N}]+)", R"(\P{N}+)", R"(\p{N})", R"(\P{L})"})
    EXPECT_EQ(split_by(regex, text), apart) << regex;
  EXPECT_EQ(split_by(R"(\p{M}+)", "a\U0001e08fb"), (Pieces{"a", "\U0001e08f", "b"}));
  EXPECT_THROW(Pattern(R"([\P{L}])"), Error);
}

TEST(Pattern, subcategories_of_unicode_14) {  // and those of symbols and punctuation
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"Lo", "\U00031350"}, {"Lu", "\ua7da"},    {"Ll", "\ua7db"},    {"Nd", "\U00010d40"}, {"Mc", "\U00011f03"},
      {"So", "\U0001fa77"}, {"S", "\U0001fae8"}, {"P", "\U00011b00"}, {"Cf", "\U00013439"}};
  for (const auto& [category, character] : cases) {
    const std::string text = "\t" + character + "\t", in = R"(\p{)" + category + "}";
    for (const std::string& regex : {in, "[" + in + "]", "[^" + in + "]", R"(\P{)" + category + "}"})
      EXPECT_EQ(split_by(regex, text), (Pieces{"\t", character, "\t"})) << regex;
  }
  for (const char* regex : {R"(\d)", R"(\D)", R"([\d])", R"([^\d])"})
    EXPECT_EQ(split_by(regex, "\t\U00010d40\t"), (Pieces{"\t", "\U00010d40", "\t"})) << regex;
  EXPECT_THROW(Pattern(R"([\D])"), Error);
}

TEST(Pattern, CaselessGroupsFoldTheLongS) {
  EXPECT_EQ(split_by("(?i:'s)", "a'\u017fb"), (Pieces{"a", "'\u017f", "b"}));
}

TEST(Pattern, RefusesWhatTheTwoLanguagesReadDifferently) {
  for (const char* regex :
       {R"(\w)",    R"(\b)",     R"(\h)",     R"(\v)",      R"(\x41)",   R"([[a]])",  "[a&&b]",  "[[:alpha:]]",
        "[]a]",     "(?<n>a)",   "(*UTF)",    "(?i)a",      "(?>a)",     "^a",        "a$",      "a{,3}",
        "a{2}+",    "a{2}?",     "a{",        R"(\p{Han})", R"(\p{^L})", R"(\pL)",    R"(\p{L)", "\\",
        R"(\p{C})", R"(\p{Cn})", R"(\p{Mn})", R"(\p{LC})",  R"(\p{Lc})", R"(\p{lu})", R"(\p{})"}) {
    try {
      Pattern pattern(regex);
      ADD_FAILURE() << regex << " is accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << regex;
    }
  }
}

TEST(Pattern, StopsAHostilePattern) {
  const Pattern pattern("(?:a|aa|a)+[bc]");
  Pieces pieces;
  try {
    pattern.split(std::string(200, 'a') + "d", pieces);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kModelFile);
    EXPECT_NE(std::string(error.what()).find("match limit"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace headrace
