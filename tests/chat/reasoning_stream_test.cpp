#include "headrace/chat/reasoning_stream.h"

#include <gtest/gtest.h>

#include <vector>

namespace headrace {
namespace {

void append(ReasoningStream::Parts& sum, const ReasoningStream::Parts& parts) {
  sum.reasoning += parts.reasoning;
  sum.content += parts.content;
}

ReasoningStream::Parts read(ReasoningStream& stream, std::string_view answer, size_t piece_size) {
  ReasoningStream::Parts sum;
  for (size_t i = 0; i < answer.size(); i += piece_size) append(sum, stream.push(answer.substr(i, piece_size)));
  append(sum, stream.finish());
  return sum;
}

struct Answer {
  std::string_view prompt, text, reasoning, content;
};

constexpr std::string_view kUser = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
constexpr std::string_view kThinkTag = "<|im_start|>assistant\n<think>\n";

const Answer kAnswers[] = {
    {kUser, "", "", ""},
    {kUser, "Hello", "", "Hello"},
    {kUser, " \n Hello \n", "", " \n Hello \n"},
    {kUser, " \n ", "", " \n "},
    {kUser, "<think>\nA b.\n</think>\n\nHello\n", "A b.", "Hello\n"},
    {kUser, "\n\n<think>\n\n</think>\n\nHello", "", "Hello"},
    {kUser, "<think></think>", "", ""},
    {kUser, "<think>\n\n</think>\n\n", "", ""},
    {kThinkTag, "A b.\n</think>\n\nHello", "A b.", "Hello"},
    {kThinkTag, "</think>Hello", "", "Hello"},
    {kThinkTag, "<think>\nA b.\n</think>\nHello", "A b.", "Hello"},
    // The templates' way to forbid thinking.
    {"assistant\n<think>\n\n</think>\n\n", "Hello", "", "Hello"},
    // Never closed: the answer is cut off.
    {kThinkTag, "A b. ", "A b. ", ""},
    {kThinkTag, "A b.</thin", "A b.</thin", ""},
    {kThinkTag, " \n", "", ""},
    {kUser, "<think>A\n", "A\n", ""},
    {kUser, "<thin", "", "<thin"},
    // Text that looks like a tag and is none.
    {kUser, "<thinker> a</think>b", "", "<thinker> a</think>b"},
    {kUser, "A <think>b</think>", "", "A <think>b</think>"},
    {kUser, "</think>A", "", "</think>A"},
    {kUser, "<Think>A</Think>", "", "<Think>A</Think>"},
    {kThinkTag, "a </ b </thinking> </</think>c", "a </ b </thinking> </", "c"},
    {kThinkTag, "a<think>b</think>c</think>d", "a<think>b", "c</think>d"},
    {kUser, "<think>a</think>b<think>c</think>", "a", "b<think>c</think>"},
    {"user: what does <think> mean?\nassistant:", "It", "", "It"},
    {kThinkTag, "é\n \n😀</think>\n😀", "é\n \n😀", "😀"},
};

TEST(ReasoningStream, TellsThinkingFromTheAnswerHoweverTheTextIsCut) {
  for (const Answer& answer : kAnswers) {
    for (const size_t piece_size : {1, 2, 3, 5, 8, 1000}) {
      ReasoningStream stream(answer.prompt);
      const ReasoningStream::Parts parts = read(stream, answer.text, piece_size);
      EXPECT_EQ(parts.reasoning, answer.reasoning) << answer.text << ", pieces of " << piece_size;
      EXPECT_EQ(parts.content, answer.content) << answer.text << ", pieces of " << piece_size;
    }
  }
}

TEST(ReasoningStream, ShowsTextAsSoonAsItCannotBecomeATag) {
  ReasoningStream stream(kThinkTag);
  EXPECT_EQ(stream.push("\nOne").reasoning, "One");
  EXPECT_EQ(stream.push(" two </t").reasoning, " two");
  EXPECT_EQ(stream.push("here> ").reasoning, " </there>");
  EXPECT_EQ(stream.push("\n</think>\n").reasoning, "");
  EXPECT_EQ(stream.push("\nYes").content, "Yes");
  EXPECT_EQ(stream.push(" \n").content, " \n");
}

TEST(ReasoningStream, KnowsWhetherTheModelThinks) {
  ReasoningStream stream(kUser);
  EXPECT_FALSE(stream.is_thinking());
  stream.push("<thi");
  EXPECT_FALSE(stream.is_thinking());
  stream.push("nk>a");
  EXPECT_TRUE(stream.is_thinking());
  stream.push("</think>");
  EXPECT_FALSE(stream.is_thinking());
  EXPECT_TRUE(ReasoningStream(kThinkTag).is_thinking());
}

}  // namespace
}  // namespace headrace
