// Templates of our own, after the documented behaviour of model families, against Python's jinja2 with transformers'
// options: make_chats.py made expected.json.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "headrace/core/error.h"
#include "json_values.h"
#include "support/source_tree.h"

namespace headrace {
namespace {

namespace dom = simdjson::dom;

std::string chat_file(const std::string& name) {
  std::ifstream in(testing_support::source_tree() / "tests/chat" / name, std::ios::binary);
  EXPECT_TRUE(in) << name;
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::string fnv1a(std::string_view text) {
  uint64_t value = 0xCBF29CE484222325;
  for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  char out[17];
  std::snprintf(out, sizeof(out), "%016llx", static_cast<unsigned long long>(value));
  return out;
}

// Chats hold U+2318 and no template does: wherever it comes out, it is literal.
void expect_marks_are_literal(const ChatPrompt& prompt) {
  constexpr std::string_view kMark = "\u2318";
  size_t end = 0;
  for (const auto& span : prompt.literal) {
    EXPECT_TRUE(span.begin < span.end && span.end <= prompt.text.size() && (span.begin > end || end == 0));
    end = span.end;
  }
  for (size_t at = 0; (at = prompt.text.find(kMark, at)) != std::string::npos; at += kMark.size()) {
    EXPECT_TRUE(std::ranges::any_of(
        prompt.literal, [&](const auto& span) { return span.begin <= at && at + kMark.size() <= span.end; }))
        << "at " << at << " of " << prompt.text;
  }
}

class ChatTemplateGolden : public ::testing::Test {
 protected:
  ChatTemplateGolden()
      : expected_(parser_.parse(chat_file("expected.json"))),
        chats_(chats_parser_.parse(chat_file("conversations.json"))) {}

  void check(const ChatTemplate& chat_template, dom::element chat, dom::element wanted) {
    try {
      const ChatPrompt prompt = chat_template.render(testing::chat_input(chat));
      expect_marks_are_literal(prompt);
      ASSERT_TRUE(wanted.is_array()) << "expected an error, " << std::string_view(wanted["error"]);
      EXPECT_EQ(static_cast<int64_t>(prompt.text.size()), int64_t(wanted.at(0))) << prompt.text;
      EXPECT_EQ(fnv1a(prompt.text), std::string_view(wanted.at(1))) << prompt.text;
    } catch (const Error& error) {
      ASSERT_TRUE(wanted.is_object()) << error.what();
      EXPECT_TRUE(std::string_view(error.what()).ends_with(std::string_view(wanted["error"]))) << error.what();
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    }
    ++checked_;
  }

  dom::parser parser_, chats_parser_;
  dom::element expected_, chats_;
  int checked_ = 0;
};

TEST_F(ChatTemplateGolden, RendersAsJinja2) {
  for (const auto& [name, results] : dom::object(expected_)) {
    SCOPED_TRACE(name);
    const auto chat_template =
        ChatTemplate::from_text(chat_file("templates/" + std::string(name) + ".jinja"), "<s>", "</s>");
    size_t i = 0;
    for (const dom::element chat : dom::array(chats_)) {
      SCOPED_TRACE(i);
      check(chat_template, chat, results.at(i++));
    }
  }
  EXPECT_GE(checked_, 600);
}

constexpr EncodeOptions kWholeText{.special_tokens = SpecialTokens::kParse,
                                   .add_special_tokens = AddSpecialTokens::kNo};

int64_t count_special(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  return std::ranges::count_if(ids, [&](int32_t id) { return tokenizer.is_special(id); });
}

// The text that the template alone wrote: literal bytes are letters.
std::string without_literals(const ChatPrompt& prompt) {
  std::string text = prompt.text;
  for (const auto& span : prompt.literal) text.replace(span.begin, span.end - span.begin, span.end - span.begin, 'x');
  return text;
}

// transformers encodes the whole text. Ids differ from those where a user spelled special tokens, and there alone.
TEST_F(ChatTemplateGolden, IdsAreThoseOfTheWholeText) {
  constexpr size_t kSpelling = 2;  // the chat whose user spells special tokens
  int64_t spelled = 0, compared = 0;
  for (const char* family : {"qwen3_5", "llama3", "gemma", "llada2"}) {
    const auto tokenizer =
        Tokenizer::from_file(testing_support::golden_folder("tokenizers") / (std::string(family) + ".json"));
    for (const auto& [name, results] : dom::object(expected_)) {
      const auto chat_template =
          ChatTemplate::from_text(chat_file("templates/" + std::string(name) + ".jinja"), "<s>", "</s>");
      for (size_t i = 0; i < results.get_array().size(); ++i) {
        if (!results.at(i).is_array()) continue;
        const ChatPrompt prompt = chat_template.render(testing::chat_input(chats_.at(i)));
        const auto ids = encode(tokenizer, prompt), whole = tokenizer.encode(prompt.text, kWholeText);
        ASSERT_TRUE(i == kSpelling || ids == whole) << family << " " << name << " " << i;
        const int64_t own = count_special(tokenizer, tokenizer.encode(without_literals(prompt), kWholeText));
        ASSERT_EQ(count_special(tokenizer, ids), own) << family << " " << name << " " << i;
        spelled += count_special(tokenizer, whole) - own;
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 2000);
  EXPECT_GT(spelled, 20);
}

}  // namespace
}  // namespace headrace
