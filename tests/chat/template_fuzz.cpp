// Random templates, grown from pieces that templates are made of and then mutated, on random chats within a small
// budget: each is refused, ends in an error, or renders. What it renders is UTF-8, its literal spans are in order, and
// a character that only the chat has is within them.
#include <algorithm>
#include <string>

#include "headrace/chat/chat_template.h"
#include "headrace/core/error.h"
#include "headrace/text/utf8.h"
#include "support/fuzz.h"
#include "support/random.h"

namespace headrace::testing_support {
namespace {

constexpr std::string_view kMark = "\u2318";  // in chats alone

template <size_t n>
std::string_view one_of(Random& random, const std::string_view (&choices)[n]) {
  return choices[static_cast<size_t>(random.below(static_cast<int64_t>(n)))];
}

std::string expression(Random& random, int depth) {
  static constexpr std::string_view kLeaves[] = {"messages",
                                                 "messages[0]",
                                                 "m",
                                                 "m.content",
                                                 "m.role",
                                                 "x",
                                                 "ns",
                                                 "ns.a",
                                                 "loop",
                                                 "loop.index",
                                                 "loop.last",
                                                 "loop.nextitem",
                                                 "tools",
                                                 "bos_token",
                                                 "true",
                                                 "none",
                                                 "1",
                                                 "-3",
                                                 "2.5",
                                                 "9223372036854775807",
                                                 "'a'",
                                                 "'<|b|>\\n'",
                                                 "''",
                                                 "'%s %d'",
                                                 "'{} {x}'",
                                                 "[]",
                                                 "{}",
                                                 "range(5)",
                                                 "f",
                                                 "caller",
                                                 "kwargs",
                                                 "varargs",
                                                 "undefined_name"};
  static constexpr std::string_view kOperators[] = {" + ",  " - ",  " * ", " / ",  " // ", " % ",      " ** ",  " ~ ",
                                                    " == ", " != ", " < ", " >= ", " in ", " not in ", " and ", " or "};
  static constexpr std::string_view kFilters[] = {"length",
                                                  "upper",
                                                  "lower",
                                                  "title",
                                                  "capitalize",
                                                  "trim",
                                                  "list",
                                                  "first",
                                                  "last",
                                                  "join(',')",
                                                  "join('-', 'role')",
                                                  "tojson",
                                                  "tojson(indent=2)",
                                                  "string",
                                                  "int",
                                                  "float",
                                                  "abs",
                                                  "round(1)",
                                                  "default('d', true)",
                                                  "reverse",
                                                  "sort",
                                                  "sort(attribute='role')",
                                                  "unique",
                                                  "min",
                                                  "max",
                                                  "sum",
                                                  "map(attribute='content')",
                                                  "map('upper')",
                                                  "selectattr('role', 'equalto', 'user')",
                                                  "rejectattr('content')",
                                                  "select('string')",
                                                  "groupby('role')",
                                                  "items",
                                                  "dictsort",
                                                  "batch(2, 'z')",
                                                  "slice(2)",
                                                  "indent(2, true)",
                                                  "truncate(5)",
                                                  "replace('a', 'b')",
                                                  "e",
                                                  "safe",
                                                  "center(9)",
                                                  "format(1)",
                                                  "urlencode",
                                                  "wordcount",
                                                  "attr('items')",
                                                  "nothing"};
  static constexpr std::string_view kMethods[] = {".split()",
                                                  ".split('a')",
                                                  ".rsplit(None, 1)",
                                                  ".strip()",
                                                  ".lstrip('a')",
                                                  ".replace('a', 'bb')",
                                                  ".items()",
                                                  ".keys()",
                                                  ".get('role', 1)",
                                                  ".upper()",
                                                  ".title()",
                                                  ".startswith('a')",
                                                  ".endswith(('a', 'b'))",
                                                  ".find('a')",
                                                  ".count('a')",
                                                  ".join(['x', 'y'])",
                                                  ".format(1, x='y')",
                                                  ".partition('a')",
                                                  ".splitlines()",
                                                  ".zfill(5)",
                                                  ".index('a')",
                                                  "[0]",
                                                  "[-1]",
                                                  "[1:]",
                                                  "[::-1]",
                                                  "['role']",
                                                  ".role",
                                                  ".append(1)",
                                                  ".__class__",
                                                  "()",
                                                  "(1)",
                                                  "(m, x=2)"};
  static constexpr std::string_view kTests[] = {"defined", "string",   "mapping",       "iterable", "sequence",
                                                "none",    "odd",      "divisibleby 2", "in [1]",   "sameas true",
                                                "upper",   "callable", "what"};
  const int64_t kind = depth <= 0 ? 0 : random.below(9);
  const auto inner = [&] { return expression(random, depth - 1); };
  switch (kind) {
    case 1: return inner() + std::string(one_of(random, kOperators)) + inner();
    case 2: return inner() + " | " + std::string(one_of(random, kFilters));
    case 3: return inner() + std::string(one_of(random, kMethods));
    case 4: return inner() + " is " + (one_in(random, 3) ? "not " : "") + std::string(one_of(random, kTests));
    case 5: return "(" + inner() + (one_in(random, 3) ? ", " : "") + ")";
    case 6: return inner() + " if " + inner() + (one_in(random, 3) ? "" : " else " + inner());
    case 7:
      return one_in(random, 2) ? "[" + inner() + ", " + inner() + "]" : "{'a': " + inner() + ", " + inner() + ": 1}";
    case 8: return (one_in(random, 2) ? "not " : "-") + inner();
    default: return std::string(one_of(random, kLeaves));
  }
}

std::string block(Random& random, int depth);

std::string tag(Random& random, const std::string& inside) {
  static constexpr std::string_view kOpen[] = {"{% ", "{%- ", "{%+ "}, kClose[] = {" %}", " -%}", " +%}"};
  return std::string(one_of(random, kOpen)) + inside + std::string(one_of(random, kClose));
}

std::string statement(Random& random, int depth) {
  const auto value = [&] { return expression(random, 3); };
  const auto body = [&] { return block(random, depth - 1); };
  const auto enclosed = [&](const std::string& begin, const std::string& end) {
    return tag(random, begin) + body() + tag(random, end);
  };
  switch (depth <= 0 ? random.below(4) : random.below(15)) {
    case 0: return "{{ " + value() + " }}";
    case 1: return "{{- " + value() + " -}}";
    case 2: return tag(random, "set x = " + value());
    case 3: return "{# c #}\n";
    case 4: return enclosed("if " + value(), "endif");
    case 5: return tag(random, "if " + value()) + body() + tag(random, "else") + body() + tag(random, "endif");
    case 6: return enclosed("for m in " + value(), "endfor");
    case 7: return enclosed("for m in messages if " + value() + " recursive", "endfor");
    case 8: return tag(random, "for k, m in m.items()") + body() + tag(random, "else") + body() + tag(random, "endfor");
    case 9: return enclosed("macro f(m, x=" + value() + ")", "endmacro");
    case 10: return enclosed("call f(" + value() + ")", "endcall");
    case 11: return enclosed("set x", "endset");
    case 12: return enclosed("filter upper", "endfilter");
    case 13: return tag(random, one_in(random, 2) ? "set ns = namespace(a=" + value() + ")" : "set ns.a = " + value());
    default:
      return one_in(random, 2) ? enclosed("with x = " + value(), "endwith") : enclosed("generation", "endgeneration");
  }
}

std::string block(Random& random, int depth) {
  static constexpr std::string_view kTexts[] = {"<|im_start|>", "\n", "  \n\t", "text ", "é", "{", "%}", ""};
  std::string out;
  for (int64_t i = random.below(4); i >= 0; --i) {
    out += one_of(random, kTexts);
    out += statement(random, depth);
  }
  return out;
}

// Bytes changed, removed, doubled or taken from elsewhere in it.
std::string mutated(Random& random, std::string text) {
  for (int64_t i = random.below(4); i > 0 && !text.empty(); --i) {
    const auto at = static_cast<size_t>(random.below(std::ssize(text)));
    const auto size = static_cast<size_t>(random.below(9));
    switch (random.below(4)) {
      case 0: text[at] = static_cast<char>(random.below(256)); break;
      case 1: text.erase(at, size); break;
      case 2: text.insert(at, text.substr(at, size)); break;
      default: text.insert(at, text.substr(static_cast<size_t>(random.below(std::ssize(text))), size)); break;
    }
  }
  return text;
}

TemplateValue random_value(Random& random, int depth) {
  switch (random.below(depth > 0 ? 7 : 5)) {
    case 0: return {};
    case 1: return one_in(random, 2);
    case 2: return random.below(1000) - 500;
    case 3: return static_cast<double>(random.below(1000)) / 8;
    case 4: return str("a", kMark, one_in(random, 2) ? "<|im_end|>\n b" : " é'\"");
    case 5: return TemplateValue::Array{random_value(random, depth - 1), random_value(random, depth - 1)};
    default: return TemplateValue::Object{{str("k", kMark), random_value(random, depth - 1)}, {"n", int64_t{1}}};
  }
}

ChatInput random_chat(Random& random) {
  ChatInput input{.add_generation_prompt = one_in(random, 2)};
  for (int64_t i = random.below(4); i > 0; --i) {
    TemplateValue content = one_in(random, 4) ? random_value(random, 2) : TemplateValue(str("Hi ", kMark, " a b "));
    input.messages.push_back(
        TemplateValue::Object{{"role", one_in(random, 2) ? "user" : "assistant"}, {"content", std::move(content)}});
  }
  if (one_in(random, 2)) input.tools = random_value(random, 3);
  if (one_in(random, 2)) input.kwargs = {{"x", random_value(random, 3)}};
  return input;
}

std::string fault_of(const ChatPrompt& prompt) {
  if (!is_valid_utf8(prompt.text)) return "the text is not UTF-8";
  size_t end = 0;
  for (const auto& span : prompt.literal) {
    if (span.begin >= span.end || span.end > prompt.text.size() || (end > 0 && span.begin <= end))
      return "the literal spans are not in order";
    end = span.end;
  }
  for (size_t at = 0; (at = prompt.text.find(kMark, at)) != std::string::npos; ++at) {
    const auto holds = [&](const auto& span) { return span.begin <= at && at + kMark.size() <= span.end; };
    if (!std::ranges::any_of(prompt.literal, holds)) return str("the chat's text at byte ", at, " is not literal");
  }
  return "";
}

FuzzCase template_case(uint64_t seed, const FuzzArguments&) {
  Random random(seed);
  std::string source = block(random, 3);
  if (one_in(random, 3)) source = mutated(random, std::move(source));
  const ChatInput input = random_chat(random);
  return {.summary = str(source.size(), " bytes"), .wrong = [source, input]() -> std::string {
            try {
              const auto chat = ChatTemplate::from_text(source, "<s>", "</s>");
              const std::string fault =
                  fault_of(chat.render(input, {.steps = 20'000, .output_bytes = 1 << 16, .memory_bytes = 1 << 20}));
              return fault.empty() ? fault : str(fault, "\n", source);
            } catch (const Error& error) {
              const bool expected =
                  error.code() == ErrorCode::kModelFile || error.code() == ErrorCode::kInvalidArgument;
              return expected ? "" : str(error.what(), "\n", source);
            }
          }};
}

}  // namespace
}  // namespace headrace::testing_support

int main(int argc, char** argv) {
  return headrace::testing_support::fuzz_main("template_fuzz", argc, argv, headrace::testing_support::template_case);
}
