#include "apps/prompt.h"

#include <gtest/gtest.h>

#include "apps/status_line.h"
#include "support/refusal.h"
#include "support/safetensors_writer.h"
#include "text/tiny_tokenizer.h"

namespace headrace::app {
namespace {

GenerateFlags of_words(std::vector<std::string> words) {
  GenerateFlags flags;
  flags.words = std::move(words);
  return flags;
}

TEST(Prompt, ATextIsNoModelsName) {
  for (const char* text : {"Once upon a time", "Hello", "Hello!", "it's", "caf\xc3\xa9", "a\nb"}) {
    EXPECT_TRUE(reads_as_text(text)) << text;
  }
  for (const char* name :
       {"fairy-hybird", "./model", "/models/a", "Qwen/Qwen3", "llama3", "model.gguf", "q4_k", "a:b", ""}) {
    EXPECT_FALSE(reads_as_text(name)) << name;
  }
}

// `generate "Once upon a time"` said that a prompt was missing: the text was the model.
TEST(Prompt, WordsAreTheModelAndThePrompt) {
  GenerateFlags text = of_words({"Once upon a time"});
  EXPECT_EQ(place_words(text), std::nullopt);
  EXPECT_EQ(text.model.model, "");
  EXPECT_EQ(text.prompt, "Once upon a time");

  GenerateFlags both = of_words({"fairy-hybrid", "Once"});
  EXPECT_EQ(place_words(both), std::nullopt);
  EXPECT_EQ(both.model.model, "fairy-hybrid");
  EXPECT_EQ(both.prompt, "Once");

  GenerateFlags model = of_words({"fairy-hybrid"});
  model.prompt = "Once";
  place_words(model);
  EXPECT_EQ(model.model.model, "fairy-hybrid");

  GenerateFlags named = of_words({"Once"});
  named.model.model = "fairy-hybrid";
  place_words(named);
  EXPECT_EQ(named.prompt, "Once");

  GenerateFlags empty = of_words({""});
  EXPECT_EQ(place_words(empty), std::nullopt);
  EXPECT_EQ(empty.model.model, "");
  EXPECT_EQ(empty.prompt, "");

  for (const std::vector<std::string>& words : {std::vector<std::string>{"-"}, {"fairy-hybrid", "-"}}) {
    GenerateFlags piped = of_words(words);
    EXPECT_EQ(place_words(piped), std::nullopt);
    EXPECT_EQ(piped.model.model, words.size() == 1 ? "" : "fairy-hybrid");
    EXPECT_EQ(piped.prompt, std::nullopt);
    EXPECT_EQ(piped.prompt_file, "-");
  }

  GenerateFlags missing = of_words({"no-such-model"});
  place_words(missing);
  EXPECT_EQ(missing.model.model, "no-such-model");
}

TEST(Prompt, ASingleWordThatIsNoModelIsSaidToBeThePrompt) {
  GenerateFlags flags = of_words({"Hello"});
  EXPECT_EQ(place_words(flags), "there is no model 'Hello': the word is taken as the prompt");
  EXPECT_EQ(flags.prompt, "Hello");
}

TEST(Prompt, WordsBeyondTheseAreRefused) {
  const auto refused = [](std::vector<std::string> words, std::optional<std::string> prompt = {}) {
    return testing_support::refusal_of([&] {
             GenerateFlags flags = of_words(words);
             flags.prompt = prompt;
             place_words(flags);
           })
        .sentence;
  };
  EXPECT_EQ(refused({"fairy-hybrid", "Once", "upon"}),
            "'upon' is more than generate takes; a text of several words goes in quotes");
  EXPECT_EQ(refused({"fairy-hybrid", "upon", "a"}, "Once"),
            "'upon a' is more than generate takes; a text of several words goes in quotes");
  EXPECT_EQ(refused({"Once", "upon"}), "there is no model 'Once'; a text of several words goes in quotes");
  EXPECT_EQ(refused({"", "Once"}), "--model: is empty, expected a directory or a name");
  EXPECT_EQ(refused({""}, "Once"), "--model: is empty, expected a directory or a name");
  EXPECT_EQ(refused({"fairy-hybrid", "puzzle-llada", "Once"}),
            "two models are given, 'fairy-hybrid' and 'puzzle-llada', expected one");
  EXPECT_EQ(refused({"fairy-hybrid", "puzzle-llada"}, "Once"),
            "two models are given, 'fairy-hybrid' and 'puzzle-llada', expected one");
}

TEST(Prompt, EscapesAreReplacedWhenAskedForAndWarnedOfWhenNobodySaid) {
  EXPECT_EQ(unescaped(R"(a\nb\t\\n\"\'\q\)"), "a\nb\t\\n\"'\\q\\");
  GenerateFlags flags;
  flags.prompt = R"(one\ntwo)";
  EXPECT_EQ(prompt_of(flags), R"(one\ntwo)");
  EXPECT_TRUE(escape_warning(flags));
  flags.escape = GenerateFlags::Escape::kNo;
  EXPECT_FALSE(escape_warning(flags));
  flags.escape = GenerateFlags::Escape::kYes;
  EXPECT_EQ(prompt_of(flags), "one\ntwo");
  EXPECT_FALSE(escape_warning(flags));
  flags = {};
  flags.prompt = "one\ntwo";
  EXPECT_FALSE(escape_warning(flags));
}

class TemplateWarning : public testing::Test {
 protected:
  std::string said(std::string_view prompt, bool special_tokens = false) const {
    GenerateFlags flags;
    flags.special_tokens = special_tokens;
    return template_warning(flags, prompt, tokenizer_, model_.path()).value_or("");
  }
  test::TempDir model_;
  Tokenizer tokenizer_ = Tokenizer::from_json(TinyTokenizer().json());
};

// An instruct model's template was left out, and its markers read as text, without a word.
TEST_F(TemplateWarning, SpeaksOfATemplateThatIsNotApplied) {
  EXPECT_EQ(said("Who are you?"), "");
  test::write_file(model_ / "tokenizer_config.json", R"({"chat_template": null})");
  EXPECT_EQ(said("Who are you?"), "");
  test::write_file(model_ / "tokenizer_config.json", R"({"chat_template": "{{ messages }}"})");
  EXPECT_TRUE(said("Who are you?").starts_with("this model has a chat template, which is not applied"));
  EXPECT_EQ(said("<|end|>user", true), "") << "whoever writes the turns out knows";
  test::write_file(model_ / "tokenizer_config.json", "{}");
  test::write_file(model_ / "chat_template.jinja", "");
  EXPECT_NE(said("Who are you?"), "");
  test::write_file(model_ / "chat_template.jinja", "{{ messages[0].content }}");
  EXPECT_EQ(said("Who are you?"), "") << "it adds nothing";
  test::write_file(model_ / "chat_template.jinja", "{{");
  EXPECT_NE(said("Who are you?"), "");
}

TEST_F(TemplateWarning, AsChatAppliesTheTemplate) {
  EXPECT_THROW(as_chat("Hi", model_.path()), Error);
  test::write_file(model_ / "chat_template.jinja", "<{{ messages[0].role }}>{{ messages[0].content }}");
  EXPECT_EQ(as_chat("Hi", model_.path()).text, "<user>Hi");
}

TEST_F(TemplateWarning, SpeaksOfASpecialTokenThatIsReadAsText) {
  EXPECT_EQ(said("<|end|>user"),
            "the prompt spells the special token <|end|>, which is read as plain text; --special-tokens reads it as "
            "the token");
  EXPECT_EQ(said("<|end|>user", true), "");
}

// "1 forwards", "0 forwards, first after 0.00 s", and lines that broke within words.
TEST(StatusLine, FitsTheWindow) {
  Completion one;
  one.num_visible = 20, one.num_forwards = 1;
  const Timings timings{.load_s = 1, .first_token_s = 1.1, .total_s = 2};
  using Decoding = StatusLine::Decoding;
  EXPECT_EQ(status_line({.completion = one, .timings = timings}), "[20 tokens, 20 tokens/s, first after 1.10 s]\n");
  EXPECT_EQ(status_line({.completion = one, .timings = timings, .decoding = Decoding::kBlocks}),
            "[20 tokens, 20 tokens/s, first after 1.10 s, 1 forward, 20.00 tokens/forward]\n");
  EXPECT_EQ(status_line({.completion = one, .timings = timings, .decoding = Decoding::kBlocks, .columns = 60}),
            "[20 tokens, 20 tokens/s, first after 1.10 s, 1 forward]\n");
  Completion cancelled;
  cancelled.num_forwards = 7;
  EXPECT_EQ(status_line({.completion = cancelled, .timings = timings, .decoding = Decoding::kBlocks}),
            "[0 tokens, 7 forwards]\n");
}

}  // namespace
}  // namespace headrace::app
