#include "headrace/text/detokenizer.h"

#include <gtest/gtest.h>

#include "headrace/text/utf8.h"
#include "text/tiny_tokenizer.h"

namespace headrace {
namespace {

using Ids = std::vector<int32_t>;

// Without merges, so that every character is cut at every byte.
Tokenizer byte_tokenizer() {
  TinyTokenizer tiny;
  tiny.words.clear();
  tiny.merges = "[]";
  return Tokenizer::from_json(tiny.json());
}

constexpr const char* kText = "aé€😀👨\u200d👩\u200d👧 ไม่ e\u0301 \r\n中";

TEST(Detokenizer, NeverEmitsHalfACharacter) {
  const Tokenizer tokenizer = byte_tokenizer();
  Detokenizer detokenizer(tokenizer);
  std::string text;
  for (const int32_t id : tokenizer.encode(kText)) {
    const std::string delta = detokenizer.push(id);
    EXPECT_TRUE(is_valid_utf8(delta));
    EXPECT_EQ(delta.find("\uFFFD"), delta.npos);
    text += delta;
  }
  EXPECT_EQ(detokenizer.flush(), "");
  EXPECT_EQ(text, kText);
}

TEST(Detokenizer, StoppedAnywhereEqualsDecode) {
  const Tokenizer tokenizer = byte_tokenizer();
  const Ids ids = tokenizer.encode(kText);
  for (size_t begin = 0; begin <= ids.size(); ++begin) {
    for (size_t end = begin; end <= ids.size(); ++end) {
      const std::span part = std::span(ids).subspan(begin, end - begin);
      Detokenizer detokenizer(tokenizer);
      std::string text;
      for (const int32_t id : part) text += detokenizer.push(id);
      text += detokenizer.flush();
      ASSERT_EQ(text, tokenizer.decode(part)) << begin << " to " << end;
    }
  }
}

TEST(Detokenizer, IllFormedBytesComeOutAsSoonAsTheyAreCertain) {
  const Tokenizer tokenizer = byte_tokenizer();
  Detokenizer detokenizer(tokenizer);
  EXPECT_EQ(detokenizer.push(0xF0), "");
  EXPECT_EQ(detokenizer.push(0x9F), "");
  EXPECT_EQ(detokenizer.push('x'), "\uFFFDx");
  EXPECT_EQ(detokenizer.push(0xFF), "\uFFFD");
  EXPECT_EQ(detokenizer.push(0xE2), "");
  EXPECT_EQ(detokenizer.flush(), "\uFFFD");
  EXPECT_EQ(detokenizer.flush(), "");
}

TEST(Detokenizer, SkipsSpecialTokensUnlessKept) {
  const Tokenizer tokenizer = byte_tokenizer();
  Detokenizer skipping(tokenizer), keeping(tokenizer, SpecialText::kKeep);
  std::string skipped, kept;
  for (const int32_t id : {0xE2, 300, 0x82, 0xAC, 301}) skipped += skipping.push(id), kept += keeping.push(id);
  EXPECT_EQ(skipped, "€<think>");
  EXPECT_EQ(kept, "\uFFFD<|end|>\uFFFD\uFFFD<think>");
}

TEST(Detokenizer, IsReadyForANewSequenceAfterFlush) {
  const Tokenizer tokenizer = byte_tokenizer();
  Detokenizer detokenizer(tokenizer);
  detokenizer.push(0xE2);
  detokenizer.flush();
  EXPECT_EQ(detokenizer.push('a'), "a");
}

}  // namespace
}  // namespace headrace
