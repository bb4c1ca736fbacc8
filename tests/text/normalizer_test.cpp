#include "headrace/text/normalizer.h"

#include <gtest/gtest.h>

#include "headrace/core/error.h"
#include "support/refusal.h"

namespace headrace {
namespace {

using Steps = std::vector<NormalizerStep>;

NormalizerStep replace(std::string from, std::string to) {
  return {.kind = NormalizerStep::Kind::kReplace, .from = std::move(from), .to = std::move(to)};
}

std::string sentence(const Steps& steps, const std::string& text) {
  const auto refused = testing_support::refusal_of([&] { normalized(steps, text); });
  EXPECT_EQ(refused.code, ErrorCode::kModelFile);
  return refused.sentence;
}

TEST(Normalizer, StepsRunInOrder) {
  EXPECT_EQ(normalized(Steps{replace("a", "bb"), replace("bb", "\u2581"), {}}, "axa e\u0301"), "\u2581x\u2581 \u00e9");
  EXPECT_EQ(normalized(Steps{replace(" ", "\u2581")}, std::string(100000, ' ')).size(), 300000);
  EXPECT_EQ(normalized(Steps{replace("a", "")}, "aaa"), "");
  EXPECT_EQ(normalized(Steps{}, "abc"), "abc");
}

TEST(Normalizer, nested_steps_asked_for_a_terabyte) {
  const Steps doubled(40, replace("a", "aa"));
  EXPECT_EQ(sentence(doubled, "a"),
            "the normalizer of tokenizer.json makes more than 72 bytes of a text of 1, more than a tokenizer needs");
  sentence(doubled, std::string(100000, 'a'));
  sentence(Steps{replace("a", std::string(1 << 20, 'b'))}, std::string(100000, 'a'));
}

TEST(Normalizer, StepsThatTakeTooLongAreRefused) {
  const std::string text(1 << 20, 'a');
  sentence(Steps(1000, replace("b", "c")), text);
  sentence(Steps(100, NormalizerStep{}), text);
  sentence(Steps{replace(std::string(1 << 19, 'a') + "b", "c")}, text);
}

}  // namespace
}  // namespace headrace
