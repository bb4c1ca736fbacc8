#include "headrace/chat/prompt_encoder.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "support/random.h"
#include "text/tiny_tokenizer.h"

namespace headrace {
namespace {

using testing_support::Random;

constexpr const char* kEndText = "<|end|>";

Tokenizer tokenizer_of(const std::string& flags) {
  TinyTokenizer tiny;
  tiny.added_tokens = {
      {300, kEndText, "special " + flags}, {301, "<think>", ""}, {302, "o ", ""}, {303, " ", "special"}};
  return Tokenizer::from_json(tiny.json());
}

// Messages are literal, and some of them spell tokens; white space stands beside some of the template's.
ChatPrompt conversation_of(Random& random, size_t turns) {
  const std::vector<std::string> words = {"hello",   " w", "<|end|>", "<|en", "d|>", " ",
                                          "<think>", "he", "l",       "\n",   "o "};
  const auto text = [&] {
    std::string words_of;
    for (int64_t i = random.below(5); i >= 0; --i) words_of += words[static_cast<size_t>(random.below(11))];
    return words_of;
  };
  ChatPrompt prompt;
  for (size_t i = 0; i < turns; ++i) {
    prompt.text += random.below(2) == 0 ? ">" : " ";
    const std::string message = text();
    prompt.literal.push_back({prompt.text.size(), prompt.text.size() + message.size()});
    prompt.text += message + (random.below(3) == 0 ? " " : "") + kEndText;
  }
  prompt.text += random.below(2) == 0 ? "> " : "";
  return prompt;
}

ChatPrompt extended(const ChatPrompt& first, const ChatPrompt& second) {
  ChatPrompt both = first;
  both.text += second.text;
  for (const ChatPrompt::Span& span : second.literal)
    both.literal.push_back({span.begin + first.text.size(), span.end + first.text.size()});
  return both;
}

TEST(PromptEncoder, GivesTheIdsOfTheWholeWhateverCameBefore) {
  for (const char* flags : {"", "lstrip", "rstrip", "lstrip rstrip", "single_word", "normalized"}) {
    const Tokenizer tokenizer = tokenizer_of(flags);
    PromptEncoder encoder(tokenizer, 4000);
    Random random(1);
    std::vector<ChatPrompt> before{{}};
    for (int i = 0; i < 600; ++i) {
      const ChatPrompt& from = before[static_cast<size_t>(random.below(static_cast<int64_t>(before.size())))];
      const ChatPrompt prompt = extended(from, conversation_of(random, static_cast<size_t>(random.below(3))));
      ASSERT_EQ(encoder.encode(prompt), encode(tokenizer, prompt)) << flags << ": " << prompt.text;
      before.push_back(prompt);
      if (before.size() > 30) before.erase(before.begin() + 1);
    }
  }
}

TEST(PromptEncoder, ATokenThatIsAWordOfItsOwnLooksAtTheTextBehindIt) {
  TinyTokenizer tiny;
  tiny.added_tokens = {{300, "qq", "special"}, {301, "zz", "single_word"}};
  const Tokenizer tokenizer = Tokenizer::from_json(tiny.json());
  PromptEncoder encoder(tokenizer);
  const ChatPrompt prompt{.text = "> zzqqzz"};
  EXPECT_EQ(encoder.encode(prompt), encode(tokenizer, prompt));
}

TEST(PromptEncoder, TextThatIsLiteralInOnePromptAloneIsNoBeginningOfAnother) {
  const Tokenizer tokenizer = tokenizer_of("");
  PromptEncoder encoder(tokenizer);
  const ChatPrompt ours{.text = "he<|end|>ll<|end|>"}, typed{.text = "he<|end|>ll<|end|>o", .literal = {{0, 9}}};
  EXPECT_EQ(encoder.encode(ours), encode(tokenizer, ours));
  EXPECT_EQ(encoder.encode(typed), encode(tokenizer, typed));
}

TEST(PromptEncoder, ServesThreadsAtOnce) {
  const Tokenizer tokenizer = tokenizer_of("");
  PromptEncoder encoder(tokenizer, 2000);
  std::vector<std::thread> threads;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&, seed] {
      Random random(seed % 2);
      for (int i = 0; i < 200; ++i) {
        const ChatPrompt prompt = conversation_of(random, 3);
        EXPECT_EQ(encoder.encode(prompt), encode(tokenizer, prompt));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace headrace
