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

TEST(StopFilter, TheEarliestStopTextWins) {
  StopFilter filter({"b c", "a b"});
  EXPECT_EQ(filter.push("x a b c"), "x ");
}

}  // namespace
}  // namespace headrace
