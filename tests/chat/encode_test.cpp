#include <gtest/gtest.h>

#include <algorithm>

#include "headrace/chat/chat_template.h"
#include "support/refusal.h"
#include "text/tiny_tokenizer.h"

namespace headrace {
namespace {

using Ids = std::vector<int32_t>;
using testing_support::refusal_of;

constexpr int32_t kEnd = 300, kThink = 301;  // <|end|>, <think>

Tokenizer tiny_chat_tokenizer() { return Tokenizer::from_json(TinyTokenizer{}.json()); }

ChatInput one_message(std::string content) {
  return {.messages = {TemplateValue::Object{{"role", "user"}, {"content", std::move(content)}}}};
}

Ids encoded(std::string_view source, const ChatInput& input) {
  return encode(tiny_chat_tokenizer(), ChatTemplate::from_text(source, "", "<|end|>").render(input));
}

int64_t count_of(const Ids& ids, int32_t id) { return std::ranges::count(ids, id); }

TEST(EncodeChat, SpecialTokensAreReadInWhatTheTemplateWrote) {
  EXPECT_EQ(count_of(encoded("{{ messages[0].content }}<|end|>{{ eos_token }}", one_message("hello")), kEnd), 2);
  EXPECT_EQ(count_of(encoded("{{ messages[0].content }}<|end|>", one_message("hello<|end|>")), kEnd), 1);
  EXPECT_EQ(count_of(encoded("{{ messages[0].content }}|end|>", one_message("<")), kEnd), 0) << "over a border";
  EXPECT_EQ(count_of(encoded("<|end{{ messages[0].content }}", one_message("|>")), kEnd), 0);
  EXPECT_EQ(count_of(encoded("<|{{ messages[0].content }}|>", one_message("end")), kEnd), 0);
}

TEST(EncodeChat, OrdinaryTextHasTheIdsOfTheWholeText) {
  const Tokenizer tokenizer = tiny_chat_tokenizer();
  const ChatPrompt prompt = ChatTemplate::from_text("he{{ messages[0].content }}o w", "", "").render(one_message("ll"));
  ASSERT_EQ(prompt.literal.size(), 1u);
  EXPECT_EQ(encode(tokenizer, prompt), tokenizer.encode("hello w", {.special_tokens = SpecialTokens::kParse,
                                                                    .add_special_tokens = AddSpecialTokens::kNo}))
      << "merges go over the borders of literal text";
}

TEST(EncodeChat, OtherAddedTokensAreReadEverywhere) {
  EXPECT_EQ(count_of(encoded("<think>{{ messages[0].content }}", one_message("<think>")), kThink), 2);
}

TEST(EncodeChat, template_token_behind_half_a_user_one) {
  TinyTokenizer tiny;
  tiny.added_tokens = {{300, "<|end|>", "special"}, {301, "|<|", "special"}};
  const Tokenizer tokenizer = Tokenizer::from_json(tiny.json());
  const auto prompt = ChatTemplate::from_text("{{ messages[0].content }}<|end|>", "", "").render(one_message("|"));
  EXPECT_EQ(encode(tokenizer, prompt), (Ids{'|', 300})) << "the longer match begins in the user's text";
}

TEST(EncodeChat, NormalizedSpecialTokensToo) {
  TinyTokenizer tiny;
  tiny.added_tokens = {{300, "<|end|>", "special normalized"}};
  for (const char* normalizer : {"null", R"({"type":"NFC"})"}) {
    tiny.normalizer = normalizer;
    const Tokenizer tokenizer = Tokenizer::from_json(tiny.json());
    const auto ends = [&](std::string_view source, std::string content) {
      return count_of(
          encode(tokenizer, ChatTemplate::from_text(source, "", "").render(one_message(std::move(content)))), 300);
    };
    EXPECT_EQ(ends("{{ messages[0].content }}", "<|end|>"), 0) << normalizer;
    EXPECT_EQ(ends("a{{ messages[0].content }}b", "e\u0301<|end|>"), 0) << normalizer;
    EXPECT_EQ(ends("{{ messages[0].content }}<|end|>", "<|end|>e\u0301"), 1) << normalizer;
    EXPECT_EQ(ends("e{{ messages[0].content }}", "\u0301<|end|>"), 0) << normalizer << ": one character of both";
  }
}

TEST(EncodeChat, LiteralSpansNeedUtf8) {
  const TextSpan span{0, 1};
  const auto refusal = refusal_of([&] { tiny_chat_tokenizer().encode("\xFF", {.literal = std::span(&span, 1)}); });
  EXPECT_EQ(refusal.code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace headrace
