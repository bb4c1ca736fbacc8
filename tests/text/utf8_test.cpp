#include "headrace/text/utf8.h"

#include <gtest/gtest.h>

#include "headrace/core/error.h"
#include "headrace/text/byte_level.h"
#include "headrace/text/normalizer.h"

namespace headrace {
namespace {

struct Repair {
  std::string bytes, text;
};

// What Python prints for bytes.decode("utf-8", "replace").
const Repair kRepairs[] = {
    {"", ""},
    {"aé€😀", "aé€😀"},
    {"\x80", "\uFFFD"},
    {"\xC0\x80", "\uFFFD\uFFFD"},
    {"\xE2\x82", "\uFFFD"},
    {"\xE2\x82z", "\uFFFDz"},
    {"\xE0\x80\x80", "\uFFFD\uFFFD\uFFFD"},
    {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},
    {"\xF0\x9F\x98", "\uFFFD"},
    {"\xF0\x80\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
    {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
    {"\xF1\x80\xE1\x80z", "\uFFFD\uFFFDz"},
    {"\xFF\xFE", "\uFFFD\uFFFD"},
};

TEST(Utf8, RepairsAsPythonDoes) {
  for (const auto& [bytes, text] : kRepairs) {
    EXPECT_EQ(repaired(bytes), text);
    EXPECT_EQ(is_valid_utf8(bytes), bytes == text);
    EXPECT_TRUE(is_valid_utf8(text));
  }
}

TEST(Utf8, LeavesOutAnUnfinishedCharacter) {
  std::string out;
  EXPECT_EQ(append_repaired("ab\xF0\x9F\x98", out), 3u);
  EXPECT_EQ(out, "ab");
  EXPECT_EQ(append_repaired("\xED\xA0", out), 0u);  // no surrogate can come of it
}

TEST(Utf8, WalksEveryCodePointBothWays) {
  for (char32_t c = 0; c <= 0x10FFFF; c += c < 0x3000 ? 1 : 61) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_utf8(c, text);
    ASSERT_TRUE(is_valid_utf8(text)) << static_cast<uint32_t>(c);
    size_t at = 0;
    ASSERT_EQ(next_code_point(text, at), c);
    ASSERT_EQ(at, text.size());
    ASSERT_EQ(previous_start(text, at), 0u);
  }
}

TEST(ByteLevel, SpellsEveryByteAndReadsItBack) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string bytes(1, static_cast<char>(byte));
    EXPECT_EQ(bytes_of_spelling(spelled(bytes)), bytes);
  }
  EXPECT_EQ(spelled(" \n\xE2\x82\xAC\x7F"), "ĠĊâĤ¬ġ");
  EXPECT_EQ(bytes_of_spelling("a b"), std::nullopt);
  EXPECT_EQ(bytes_of_spelling("中"), std::nullopt);
}

TEST(Nfc, ComposesOrdersAndKeeps) {
  EXPECT_EQ(nfc("e\u0301"), "\u00e9");
  EXPECT_EQ(nfc("\u212b\u2126"), "\u00c5\u03a9");
  EXPECT_EQ(nfc("q\u0307\u0323"), "q\u0323\u0307");
  EXPECT_EQ(nfc("a\u0301\u0328"), "\u0105\u0301");
  EXPECT_EQ(nfc("\u1112\u1161\u11ab"), "\ud55c");
  EXPECT_EQ(nfc("\u0958"), "\u0915\u093c");  // excluded from composition
  EXPECT_EQ(nfc("\ufb01\u00bd"), "\ufb01\u00bd");
  EXPECT_EQ(nfc(std::string("a\0e\u0301", 5)), std::string("a\0\u00e9", 4));
}

// As in the `tokenizers` package: Unicode itself would sort U+0C3C (class 7) and U+1E4EC (232) among their neighbours.
TEST(Nfc, LeavesMarksThatAreNewerThanUnicode9WhereTheyAre) {
  for (const char* mark : {"\u0c3c", "\u1df6", "\U0001e4ec"}) {
    const std::string text = str("x\u0345", mark, "\u0323\u0301");
    EXPECT_EQ(nfc(text), text);
    EXPECT_EQ(nfc(str("e\u0301\u0323", mark, "e\u0301")), str("\u1eb9\u0301", mark, "\u00e9"));
  }
}

}  // namespace
}  // namespace headrace
