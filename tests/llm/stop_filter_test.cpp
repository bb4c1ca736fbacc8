#include "headrace/llm/stop_filter.h"

#include <gtest/gtest.h>

namespace headrace {
namespace {

TEST(StopFilter, NeverLetsAStopTextThroughHoweverTheTextIsCut) {
  const std::string text = "one two STOP three";
  for (size_t a = 0; a <= text.size(); ++a) {
    for (size_t b = a; b <= text.size(); ++b) {
      StopFilter filter({"xyz", "STOP"});
      std::string out = filter.push(text.substr(0, a));
      out += filter.push(text.substr(a, b - a));
      out += filter.push(text.substr(b));
      EXPECT_EQ(out, "one two ");
      EXPECT_TRUE(filter.stopped());
    }
  }
}

TEST(StopFilter, HeldBackTextComesOutWhenItWasNoStopText) {
  StopFilter filter({"aab"});
  EXPECT_EQ(filter.push("aa"), "");
  EXPECT_EQ(filter.push("a"), "a");
  EXPECT_EQ(filter.flush(), "aa");
}

TEST(StopFilter, NamesTheStopTextThatCame) {
  StopFilter filter({"xyz", "two", "two three"});
  filter.push("one");
  EXPECT_EQ(filter.stop(), nullptr);
  filter.push(" two three");
  ASSERT_NE(filter.stop(), nullptr);
  EXPECT_EQ(*filter.stop(), "two") << "of two at one place the first one given";
}

TEST(StopFilter, NamesTheStopTextThatComesFirst) {
  StopFilter filter({"three", "two"});
  filter.push("one two three");
  ASSERT_NE(filter.stop(), nullptr);
  EXPECT_EQ(*filter.stop(), "two");
}

// A special token is no part of what is shown, and may be what a reader stops at.
TEST(StopFilter, FindsStopTextsInWhatIsHiddenAndInWhatIsShown) {
  using Shown = StopFilter::Shown;
  const auto text_of = [](const std::vector<std::string>& stops, bool& stopped) {
    StopFilter filter(stops);
    std::string out = filter.push("hi");
    out += filter.push("<|end|>", Shown::kNo);
    out += filter.push("\nyou");
    stopped = filter.stopped();
    return out + filter.flush();
  };
  bool stopped = false;
  EXPECT_EQ(text_of({"<|end|>"}, stopped), "hi");
  EXPECT_TRUE(stopped);
  EXPECT_EQ(text_of({"i<|end|>\ny"}, stopped), "h");
  EXPECT_TRUE(stopped);
  EXPECT_EQ(text_of({"i\ny"}, stopped), "h") << "as the text looks";
  EXPECT_TRUE(stopped);
  EXPECT_EQ(text_of({"<|end|>x", "\nyouth"}, stopped), "hi\nyou") << "what is hidden stays hidden";
  EXPECT_FALSE(stopped);
}

TEST(StopFilter, HiddenTextHoldsBackNoMoreThanItMust) {
  StopFilter filter({"a<e>b"});
  EXPECT_EQ(filter.push("xa"), "x");
  EXPECT_EQ(filter.push("<e>", StopFilter::Shown::kNo), "");
  EXPECT_EQ(filter.push("c"), "ac");
}

TEST(StopFilter, TheEarliestStopTextWins) {
  StopFilter filter({"b c", "a b"});
  EXPECT_EQ(filter.push("x a b c"), "x ");
}

}  // namespace
}  // namespace headrace
