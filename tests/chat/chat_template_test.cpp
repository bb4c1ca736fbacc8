#include "headrace/chat/chat_template.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "support/gguf_writer.h"
#include "support/refusal.h"
#include "support/safetensors_writer.h"

namespace headrace {
namespace {

using testing_support::refusal_of;
using Object = TemplateValue::Object;

ChatInput sample_chat(std::string content = "Hi") {
  return {.messages = {Object{{"role", "user"}, {"content", std::move(content)}}}};
}

std::string shown(std::string_view source, const ChatInput& input = sample_chat()) {
  return ChatTemplate::from_text(source, "<s>", "</s>").render(input).text;
}

// The text with literal parts in [brackets].
std::string bracketed(std::string_view source, const ChatInput& input = sample_chat()) {
  const ChatPrompt prompt = ChatTemplate::from_text(source, "<s>", "</s>").render(input);
  std::string out;
  size_t done = 0;
  for (const auto& span : prompt.literal) {
    out +=
        prompt.text.substr(done, span.begin - done) + "[" + prompt.text.substr(span.begin, span.end - span.begin) + "]";
    done = span.end;
  }
  return out + prompt.text.substr(done);
}

std::string error_of(std::string_view source, const ChatInput& input = sample_chat()) {
  return refusal_of([&] { shown(source, input); }).sentence;
}

TEST(ChatTemplate, PrintsWhatPythonPrints) {
  EXPECT_EQ(
      shown(
          "{{ 1.0 }} {{ 1e16 }} {{ 1e15 }} {{ 0.0001 }} {{ 1e-5 }} {{ -0.0 }} {{ 7 // -2 }} {{ -7 % 3 }} {{ 7 / 2 }}"),
      "1.0 1e+16 1000000000000000.0 0.0001 1e-05 -0.0 -4 2 3.5");
  EXPECT_EQ(shown(R"({{ [1, 'a', "it's", none, true, 1.5, (2,), {'k': []}] }})"),
            R"([1, 'a', "it's", None, True, 1.5, (2,), {'k': []}])");
  EXPECT_EQ(shown(R"({{ ['\n\x00é\u200b'] }})"), R"(['\n\x00é\u200b'])");
  EXPECT_EQ(shown("{{ '%5.1f|%-4d|%04d|%s|%r|%%' % (2.25, 7, 42, none, 'x') }}"), "  2.2|7   |0042|None|'x'|%");
  EXPECT_EQ(shown("{{ '{0:>3}|{0!r}|{a[0]}|{b:,}|{c:.2e}'.format('x', a=['y'], b=1234567, c=0.5) }}"),
            "  x|'x'|y|1,234,567|5.00e-01");
}

TEST(ChatTemplate, WhiteSpaceGoesAsTransformersSays) {
  EXPECT_EQ(shown("a\n  {% if true %}\nb\n  {% endif %}\nc\n"), "a\nb\nc");
  EXPECT_EQ(shown("a\n  {%+ if true %}x{% endif +%}\nb"), "a\n  x\nb");
  EXPECT_EQ(shown("a  {%- if true -%}  b  {%- endif -%}  c"), "abc");
  EXPECT_EQ(shown("a {#- x -#} b{# y #}\nc"), "abc");
  EXPECT_EQ(shown("{% raw %}{{ x }}{% endraw %}{{ '}}' }}{{ {'a': {}} }}"), "{{ x }}}}{'a': {}}");
}

TEST(ChatTemplate, UndefinedValuesAreEmptyUntilUsed) {
  EXPECT_EQ(shown("{{ x }}{{ x is defined }}{{ messages[0].none }}{{ x | default('d') }}{{ x == y }}{{ x | length }}"),
            "FalsedTrue0");
  EXPECT_EQ(error_of("{{ x.y }}"), "chat template, line 1: 'x' is undefined");
  EXPECT_EQ(error_of("\n{{ messages[0].a.b }}"), "chat template, line 2: 'dict object' has no attribute 'a'");
  EXPECT_EQ(error_of("{{ 'a' + x }}"), "chat template, line 1: 'x' is undefined");
}

TEST(ChatTemplate, ScopesAreJinjas) {
  EXPECT_EQ(shown("{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}"), "231");
  EXPECT_EQ(shown("{% macro m(a, b=a) %}{{ a }}{{ b }}{{ g }}{% endmacro %}{% set g = 3 %}{{ m(1) }}{{ m(1, 2) }}"),
            "113123");
  EXPECT_EQ(shown("{% for i in [1] %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}"), "1");
  EXPECT_EQ(shown("{% set n = namespace(a=1) %}{% for i in [1, 2] %}{% set n.a = n.a + i %}{% endfor %}{{ n.a }}"),
            "4");
  EXPECT_EQ(shown("{% generation %}{% set x = 1 %}{% endgeneration %}{{ x is defined }}"), "False");
}

TEST(ChatTemplate, LiteralBytesStayLiteral) {
  EXPECT_EQ(bracketed("<{{ messages[0].content }}>{{ messages[0].role ~ bos_token }}"), "<[Hi]>[user]<s>");
  EXPECT_EQ(bracketed("{{ ('a' + messages[0].content * 2 + 'b')[1:4] }}"), "[HiH]");
  EXPECT_EQ(bracketed("{{ (' x ' ~ messages[0].content ~ ' ').strip() }}"), "x [Hi]");
  EXPECT_EQ(bracketed("{{ messages[0].content | upper }}{{ messages[0].content | lower | title }}"), "[HIHi]");
  EXPECT_EQ(bracketed("{{ messages[0].content.replace('i', '-') }}"), "[H]-");
  EXPECT_EQ(bracketed("{{ 'a-i'.replace('i', messages[0].content) }}"), "a-[Hi]");
  EXPECT_EQ(bracketed("{{ messages[0].content.split('i') }}"), "['[H]', '']");
  EXPECT_EQ(bracketed("{{ ['x', messages[0].content] | join('-') }}"), "x-[Hi]");
  EXPECT_EQ(bracketed("{{ messages[0] | tojson }}", sample_chat("a\"\n")),
            R"({"[role]": "[user]", "[content]": "[a\"\n]"})");
  EXPECT_EQ(bracketed("{{ '%s|%5s' % (messages[0].content, messages[0].content) }}"), "[Hi]|   [Hi]");
  EXPECT_EQ(bracketed("{{ '<{}>'.format(messages[0].content) }}"), "<[Hi]>");
  EXPECT_EQ(bracketed("{{ messages[0].content | reverse }}{{ messages[0].content | e }}", sample_chat("a<")),
            "[<aa&lt;]");
  EXPECT_EQ(bracketed("{% set x %}<{{ messages[0].content }}>{% endset %}{{ x | indent(1, true) }}"), " <[Hi]>");
  EXPECT_EQ(bracketed("{% for c in messages[0].content %}{{ c }}.{% endfor %}"), "[H].[i].");
  ChatInput input = sample_chat();
  input.kwargs = {{"name", "K"}, {"n", int64_t{3}}};
  input.tools = TemplateValue::Array{Object{{"f", "T"}}};
  EXPECT_EQ(bracketed("{{ name }}{{ n }}{{ tools[0].f }}{{ tools[0].keys() | list }}", input), "[K]3[T]['[f]']");
}

TEST(ChatTemplate, RaisesWithItsOwnMessage) {
  const auto refusal = refusal_of([] { shown("{{ raise_exception('Roles must alternate') }}"); });
  EXPECT_EQ(refusal.code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(refusal.sentence, "chat template, line 1: Roles must alternate");
}

TEST(ChatTemplate, RefusesWhatIsNoTemplate) {
  const auto sentence = [](std::string_view source) {
    const auto refusal = refusal_of([&] { ChatTemplate::from_text(source, "", ""); });
    EXPECT_EQ(refusal.code, ErrorCode::kModelFile) << source;
    return refusal.sentence;
  };
  EXPECT_EQ(sentence("a\n{% if x %}"), "the chat template, line 2: a block has no end: expected {% endif %}");
  EXPECT_EQ(sentence("{{ x"), "the chat template, line 1: a tag has no end: expected }}");
  EXPECT_EQ(sentence("{# x"), "the chat template, line 1: a comment has no end");
  EXPECT_EQ(sentence("{{ (1] }}"), "the chat template, line 1: unexpected ']', expected ')'");
  EXPECT_EQ(sentence("{% include 'x' %}"), "the chat template, line 1: the tag 'include' is not supported");
  EXPECT_EQ(sentence("{{ x | shout }}"), "the chat template, line 1: there is no filter 'shout'");
  EXPECT_EQ(sentence("{{ 99999999999999999999 }}"),
            "the chat template, line 1: the integer 99999999999999999999 has more than 64 bits");
  EXPECT_EQ(sentence("{% break %}"), "the chat template, line 1: 'break' is not inside a loop");
  EXPECT_EQ(sentence("{{ 1 + }}"), "the chat template, line 1: expected an expression, found '}}'");
  EXPECT_EQ(sentence("\xFF"), "the chat template is not UTF-8");
  EXPECT_NE(sentence(std::string(10 << 20, 'x')).find("expected at most 131072"), std::string::npos);
  EXPECT_NE(
      sentence("{{ " + std::string(60'000, '(') + "1" + std::string(60'000, ')') + " }}").find("nests deeper than 100"),
      std::string::npos);
  EXPECT_NE(sentence("{{ 1" + std::string(60'000, '+') + "1 }}").find("nests deeper than 100"), std::string::npos);
  std::string chain = "{{ 1";
  for (int i = 0; i < 10'000; ++i) chain += " | abs";
  EXPECT_NE(sentence(chain + " }}").find("more than 200 operands"), std::string::npos);
}

// Each ends in an error in little time and memory, whatever it tries to do.
TEST(ChatTemplate, HostileTemplatesEnd) {
  const std::string doubling =
      "{% set n = namespace(s='aaaaaaaa') %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}";
  const std::string_view hostile[] = {
      "{% for i in range(10**9) %}x{% endfor %}",
      "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
      "{% for i in range(100000) %}{% for j in range(100000) %}{{ messages | tojson }}{% endfor %}{% endfor %}",
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% macro m(x) %}{{ [[[[[[[[m(x)]]]]]]]] }}{% endmacro %}{{ m(1) }}",
      "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
      "{{ 'a' * 10**9 }}",
      "{{ 'ab' * 9223372036854775807 }}",
      "{{ [1] * 10**9 }}",
      "{{ 'a' * 10**18 }}",
      "{{ 'a'.ljust(10**12) }}",
      "{{ '%1000000000d' % 1 }}",
      "{{ '{:1000000000}'.format(1) }}",
      "{{ 'a' | indent(10**10) }}",
      "{{ [1] | batch(10**12, 0) | list }}",
      "{{ [] | slice(10**12) | list }}",
      "{{ range(-2**62, 2**62, 2**45) | list }}{{ 'a' * 10**9 }}",
      doubling,
      "{% set n = namespace(l=[]) %}{% for i in range(99999) %}{% set n.l = [n.l] %}{% endfor %}",
      "{% set n = namespace(l=[0]) %}{% for i in range(99) %}{% set n.l = n.l + n.l %}{% endfor %}",
      "{% set n = namespace() %}{% set n.n = n %}{% set n.l = [n] %}{{ n.l }}",
      ("{% for i in range(100000) %}{% macro m() %}{{ i }}{% endmacro %}{% set x = namespace(m=m) %}{% endfor %}{{ 'a' "
       "* 10**9 }}"),
      ("{% for i in range(99999) %}{% set x %}{% for j in range(999) %}{{ 'aaaaaaaaaaaaaaaaaaaaaaaaaaaa' }}{% endfor "
       "%}{% endset %}{% endfor %}"),
      "{% set s = 'ab' * 500000 %}{% for i in range(99999) %}{{ s.replace('a', 'c') | length }}{% endfor %}",
      "{% set s = 'a' * 1000000 %}{% for i in range(99999) %}{{ (s ~ 'b').find('a' * 500000 ~ 'c') }}{% endfor %}",
      "{% set s = ' ' * 1000000 %}{% for i in range(99999) %}{{ (s | trim) ~ (s ~ 'x' ~ s).split() }}{% endfor %}",
      "{{ (range(100000) | list) | sort | unique | list | length }}{{ 10**9 * 10**9 * 10**9 }}",
      "{{ ''.__class__ }}",
      "{{ messages.__class__.__mro__ }}",
      "{{ '{0.__class__}'.format(1) }}",
      "{{ messages.append(1) }}",
      "{{ cycler.__init__ }}",
      "{{ 2**63 }}",
      "{{ 1 % 0 }}{{ (-2**63) // -1 }}",
  };
  for (const std::string_view source : hostile) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(refusal_of([&] { shown(source); }).code, ErrorCode::kInvalidArgument) << source;
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
    EXPECT_LT(time.count(), 5) << source << ": the limit is 0.2 s of this thread";
  }
}

TEST(ChatTemplate, BudgetsBoundSteps) {
  const auto chat = ChatTemplate::from_text("{% for i in range(1000) %}{{ i }}{% endfor %}", "", "");
  const auto sentence = [&](const TemplateBudget& budget) {
    return refusal_of([&] { chat.render(sample_chat(), budget); }).sentence;
  };
  EXPECT_EQ(sentence({}), "");
  EXPECT_EQ(sentence({.steps = 500}), "chat template, line 1: it takes more than 500 steps");
  EXPECT_NE(sentence({.output_bytes = 10}).find("its output has more than"), std::string::npos);
  EXPECT_NE(sentence({.memory_bytes = 100}).find("bytes of memory"), std::string::npos);
  EXPECT_NE(sentence({.time = std::chrono::milliseconds(0)}).find("it takes more than 0 ms"), std::string::npos);
}

TEST(ChatTemplate, InputsAreBoundedToo) {
  TemplateValue deep = "x";
  for (int i = 0; i < 200; ++i) deep = TemplateValue::Array{deep};
  ChatInput input = sample_chat();
  input.kwargs = {{"deep", deep}};
  EXPECT_EQ(shown("{{ messages | length }}", input), "1") << "what a template does not read is not converted";
  EXPECT_NE(error_of("{{ deep }}", input).find("nest more than 100 deep"), std::string::npos);
  input.kwargs = {{"messages", "x"}};
  EXPECT_NE(error_of("x", input).find("'messages' cannot be set"), std::string::npos);
  EXPECT_EQ(shown("{{ messages[0].content }}", sample_chat("a\xFF")), "a\uFFFD");
  EXPECT_EQ(shown("{{ messages[0].content | length }}", sample_chat(std::string(20 << 20, 'x'))), "20971520");
}

TEST(ChatTemplate, GoesOnWithTheLastMessage) {
  ChatInput input = sample_chat();
  input.messages.push_back(Object{{"role", "assistant"}, {"content", " Once upon "}});
  input.continue_final_message = true;
  EXPECT_NE(error_of("x", input).find("exclude each other"), std::string::npos);
  input.add_generation_prompt = false;
  const std::string turns = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}";
  EXPECT_EQ(shown(turns, input), "<user>Hi</><assistant> Once upon ");
  EXPECT_EQ(shown("{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}", input),
            "<user>Hi</><assistant>Once upon");
  EXPECT_NE(error_of("nothing", input).find("changes the last message"), std::string::npos);
  input.messages.back() = Object{{"content", TemplateValue::Array{Object{{"type", "text"}, {"text", "a"}}}}};
  EXPECT_EQ(shown("{{ messages[1].content[0].text }}.", input), "a");
  input.messages.back() = Object{{"content", TemplateValue()}};
  EXPECT_NE(error_of("x", input).find("no text to go on with"), std::string::npos);
}

TEST(ChatTemplate, StrftimeNowIsToday) {
  const std::time_t now = std::time(nullptr);
  char year[8];
  std::strftime(year, sizeof(year), "%Y", std::localtime(&now));
  EXPECT_EQ(shown("{{ strftime_now('%Y') }}"), year);
}

class ModelFolder : public ::testing::Test {
 protected:
  ModelFolder() : path_(std::filesystem::path(::testing::TempDir()) / ("chat_template" + std::to_string(getpid()))) {
    std::filesystem::create_directories(path_ / "chat_templates");
  }
  ~ModelFolder() override { std::filesystem::remove_all(path_); }
  void write(const std::string& name, std::string_view text) const { std::ofstream(path_ / name) << text; }
  std::string shown_by(std::string_view name = "default") const {
    const auto chat = ChatTemplate::of_model(path_, name);
    return chat ? chat->render(sample_chat()).text : "none";
  }

  std::filesystem::path path_;
};

TEST_F(ModelFolder, TemplatesComeFromTheirFiles) {
  EXPECT_EQ(shown_by(), "none");
  write("chat_template.json", R"({"chat_template": "legacy"})");
  EXPECT_EQ(shown_by(), "legacy");
  write("tokenizer_config.json", R"({"chat_template": [{"name": "default", "template": "listed"},
                                                       {"name": "tool_use", "template": "tools"}]})");
  EXPECT_EQ(shown_by(), "listed");
  EXPECT_EQ(shown_by("tool_use"), "tools");
  write("tokenizer_config.json", R"({"chat_template": "config"})");
  EXPECT_EQ(shown_by(), "config");
  write("chat_template.jinja", "file");
  EXPECT_EQ(shown_by(), "file");
  write("chat_templates/rag.jinja", "{{ messages[0].content }}");
  EXPECT_EQ(shown_by("rag"), "Hi");
  EXPECT_EQ(shown_by("../chat_template"), "none");
  EXPECT_EQ(ChatTemplate::of_model(path_)->source(), "file");
}

TEST_F(ModelFolder, SpecialTokensAreVariables) {
  write("chat_template.jinja",
        "{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ image_token }}{{ sep_token is defined }}"
        "{{ additional_special_tokens }}");
  write("tokenizer_config.json", R"({"bos_token": {"content": "<b>", "lstrip": false}, "eos_token": "<e>",
      "extra_special_tokens": {"image_token": "<i>"}, "unk_token": null})");
  write("special_tokens_map.json", R"({"eos_token": "<other>", "pad_token": {"content": "<p>"},
      "additional_special_tokens": ["<x>", {"content": "<y>"}]})");
  EXPECT_EQ(shown_by(), "<b><e><p><i>False['<x>', '<y>']");
}

// As transformers passes the tokens whose ids a file names.
TEST_F(ModelFolder, AGgufFileHasTemplatesAndTokens) {
  using test::gguf_key;
  path_ /= "m.gguf";
  test::GgufBytes file{.keys = {gguf_key("tokenizer.ggml.tokens", std::vector<std::string>{"<b>", "<e>", "<p>"}),
                                gguf_key("tokenizer.ggml.bos_token_id", 0), gguf_key("tokenizer.ggml.eos_token_id", 1),
                                gguf_key("tokenizer.ggml.padding_token_id", 3)}};
  test::write_file(path_, file.bytes());
  EXPECT_EQ(shown_by(), "none");
  file.keys.push_back(gguf_key("tokenizer.chat_template",
                               "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ pad_token is defined }}"));
  file.keys.push_back(gguf_key("tokenizer.chat_template.tool_use", "tools"));
  test::write_file(path_, file.bytes());
  EXPECT_EQ(shown_by(), "<b>Hi<e>False");
  EXPECT_EQ(shown_by("tool_use"), "tools");
  EXPECT_EQ(shown_by("rag"), "none");
  file.keys.push_back(gguf_key("tokenizer.chat_template.broken", "\n{% if %}"));
  file.keys.push_back(gguf_key("tokenizer.chat_template.long", std::string(200'000, 'x')));
  test::write_file(path_, file.bytes());
  EXPECT_EQ(refusal_of([&] { shown_by("broken"); }).sentence.find(path_.string() + ": the chat template, line 2"), 0u);
  EXPECT_EQ(refusal_of([&] { shown_by("long"); }).sentence,
            path_.string() + ": the chat template has 200000 bytes, expected at most 131072");
  path_ = path_.parent_path();
}

TEST_F(ModelFolder, FaultsNameTheFile) {
  write("chat_template.jinja", "\n{% if %}");
  auto refusal = refusal_of([&] { ChatTemplate::of_model(path_); });
  EXPECT_EQ(refusal.code, ErrorCode::kModelFile);
  EXPECT_NE(refusal.sentence.find("chat_template.jinja: the chat template, line 2: expected an expression"),
            std::string::npos);
  write("chat_template.jinja", std::string(200'000, 'x'));
  EXPECT_NE(refusal_of([&] { ChatTemplate::of_model(path_); }).sentence.find("200000 bytes"), std::string::npos);
  std::filesystem::remove(path_ / "chat_template.jinja");
  write("tokenizer_config.json", "[]");
  EXPECT_EQ(refusal_of([&] { ChatTemplate::of_model(path_); }).code, ErrorCode::kModelFile);
}

}  // namespace
}  // namespace headrace
