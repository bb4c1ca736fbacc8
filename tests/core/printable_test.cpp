#include "headrace/core/printable.h"

#include <gtest/gtest.h>

#include <string>

namespace headrace {
namespace {

using std::string_literals::operator""s;

TEST(Printable, TextOfOneLineStaysAsItIs) {
  EXPECT_EQ(printable(""), "");
  EXPECT_EQ(printable("model.layers.0"), "model.layers.0");
  EXPECT_EQ(printable(R"(\p{L}+ "x")"), R"(\p{L}+ "x")");
  EXPECT_EQ(printable("Ġé…😀"), "Ġé…😀");
}

TEST(Printable, WhatWouldChangeTheLineOrEndTheQuoteIsHex) {
  EXPECT_EQ(printable("a\0b'\n\x1b[31m\x7f"s), R"(a\x00b\x27\x0a\x1b[31m\x7f)");
  EXPECT_EQ(printable("\xc2\x9b\xc2\xa1"), R"(\xc2\x9b¡)");  // U+009B is a control of terminals
  EXPECT_EQ(printable("\xff\xc3 \xe2\x82"), R"(\xff\xc3 \xe2\x82)");
}

TEST(Printable, WhatIsBehindEightyCharactersIsCut) {
  EXPECT_EQ(printable(std::string(80, 'x')), std::string(80, 'x'));
  EXPECT_EQ(printable(std::string(100'000, 'x')), std::string(80, 'x') + "…");
  EXPECT_EQ(printable("éé\n\n", 3), R"(éé\x0a…)") << "characters, not bytes";
}

}  // namespace
}  // namespace headrace
