#include "headrace/chat/growing_chat.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "text/tiny_tokenizer.h"

namespace headrace {
namespace {

using Ids = std::vector<int32_t>;
constexpr int32_t kTurnEnd = 300;

Tokenizer tiny() { return Tokenizer::from_json(TinyTokenizer().json()); }

// Messages are literal; the template writes ">" in front of each and "<|end|>" behind it.
ChatPrompt conversation(const std::vector<std::string>& messages) {
  ChatPrompt prompt;
  for (const std::string& message : messages) {
    prompt.text += ">";
    const size_t begin = prompt.text.size();
    prompt.text += message;
    if (!message.empty()) prompt.literal.push_back({begin, prompt.text.size()});
    prompt.text += "<|end|>";
  }
  prompt.text += ">";
  return prompt;
}

Ids joined(Ids first, const Ids& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// "hello" as the model may write it, which is not what the tokenizer makes of it.
const Ids kHello = {'h', 'e', 'l', 'l', 'o'};

// A chat that has encoded the prompt of `message`, which the model answered with `answer`.
GrowingChat answered(const Tokenizer& tokenizer, const std::string& message, const Ids& answer) {
  GrowingChat chat(tokenizer);
  const ChatPrompt prompt = conversation({message});
  chat.answered(prompt, chat.encode(prompt), answer);
  return chat;
}

TEST(GrowingChat, KeepsTheIdsThatTheModelWrote) {
  const Tokenizer tokenizer = tiny();
  const Ids first = encode(tokenizer, conversation({"he"}));
  GrowingChat chat = answered(tokenizer, "he", joined(kHello, {kTurnEnd}));
  const ChatPrompt second = conversation({"he", "hello", "w"});
  const Ids ids = chat.encode(second);
  EXPECT_EQ(ids, joined(joined(first, kHello), {kTurnEnd, '>', 'w', kTurnEnd, '>'}));
  EXPECT_NE(ids, encode(tokenizer, second));
  EXPECT_EQ(tokenizer.decode(ids), second.text);
  chat.answered(second, ids, {'l', 'l'});  // cut off, without an end
  EXPECT_EQ(chat.encode(conversation({"he", "hello", "w", "ll", "he"})),
            joined(joined(ids, {'l', 'l'}), {kTurnEnd, '>', 256 /* he */, kTurnEnd, '>'}));
}

TEST(GrowingChat, KeepsWhatTheTemplateLeavesOfAnAnswer) {
  const Tokenizer tokenizer = tiny();
  GrowingChat chat = answered(tokenizer, "he", joined(kHello, {'\n', kTurnEnd}));
  EXPECT_EQ(chat.encode(conversation({"he", "hello", "w"})),
            joined(joined(encode(tokenizer, conversation({"he"})), kHello), {kTurnEnd, '>', 'w', kTurnEnd, '>'}));
}

TEST(GrowingChat, EncodesAnotherTextAsAWhole) {
  const Tokenizer tokenizer = tiny();
  const Ids answer = joined(kHello, {kTurnEnd});
  for (const std::vector<std::string>& messages :
       std::vector<std::vector<std::string>>{{"he"},                  // again, without the answer
                                             {"w", "hello", "w"},     // another beginning
                                             {"he", "hellohell"},     // the answer goes on in the same text
                                             {"he", "\nhello", "w"},  // it begins with something else
                                             {"he", "", "w"}}) {
    const ChatPrompt prompt = conversation(messages);
    EXPECT_EQ(answered(tokenizer, "he", answer).encode(prompt), encode(tokenizer, prompt)) << prompt.text;
  }
}

TEST(GrowingChat, ATextThatAUserSpellsIsNotTheTemplates) {
  const Tokenizer tokenizer = tiny();
  GrowingChat chat = answered(tokenizer, "he", kHello);
  const std::string text = conversation({"he", "hello", "w"}).text;
  const ChatPrompt spelled{text, {{1, text.size()}}};
  EXPECT_EQ(chat.encode(spelled), encode(tokenizer, spelled));
}

}  // namespace
}  // namespace headrace
