#include "headrace/chat/jinja_parser.h"

#include <algorithm>
#include <utility>

#include "headrace/chat/jinja_expression_parser.h"
#include "headrace/core/printable.h"

namespace headrace::jinja {
namespace {

using Kind = Token::Kind;
using EndTags = std::initializer_list<std::string_view>;

class Parser : ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Template run() {
    Template made;
    made.body = parse_block({});
    for (const Unknown& unknown : unknown_) fail_at(unknown.line, unknown.message);
    made.symbols = std::move(symbols_);
    return made;
  }

 private:
  bool is_end_tag(EndTags ends) const {
    return std::ranges::any_of(ends, [this](std::string_view end) { return is_name(end); });
  }

  // Statements up to a tag of `ends`, behind whose "{%" it stops; without any, up to the template's end.
  Block parse_block(EndTags ends) {
    const Nesting nesting(*this);
    const int32_t begin = line();
    Block block;
    while (!is(Kind::kEnd)) {
      const int32_t at = line();
      if (is(Kind::kData)) {
        block.push_back({at, Data{constant_text(next().text)}});
      } else if (is(Kind::kVariableBegin)) {
        next();
        block.push_back({at, Output{parse_tuple()}});
        expect(Kind::kVariableEnd);
      } else {
        expect(Kind::kBlockBegin);
        if (is_end_tag(ends)) return block;
        block.push_back(parse_statement());
        expect(Kind::kBlockEnd);
      }
    }
    if (ends.size() != 0) fail_at(begin, "a block has no end: expected {% ", *(ends.end() - 1), " %}");
    return block;
  }

  // The body of a statement whose tag ends here, and its end tag up to "%}".
  Block parse_body(std::string_view end) {
    Block block = parse_opened({end});
    next();
    return block;
  }
  Block parse_opened(EndTags ends) {
    skip_operator(":");
    expect(Kind::kBlockEnd);
    return parse_block(ends);
  }

  Statement parse_statement() {
    using Parse = Statement (Parser::*)(int32_t);
    static constexpr std::pair<std::string_view, Parse> kStatements[] = {
        {"if", &Parser::parse_if},           {"for", &Parser::parse_for},
        {"set", &Parser::parse_set},         {"macro", &Parser::parse_macro},
        {"call", &Parser::parse_call_block}, {"filter", &Parser::parse_filter_block},
        {"with", &Parser::parse_with},       {"generation", &Parser::parse_generation},
        {"break", &Parser::parse_break},     {"continue", &Parser::parse_continue}};
    const int32_t at = line();
    const std::string name = expect_name();
    for (const auto& [word, parse] : kStatements)
      if (word == name) return (this->*parse)(at);
    for (const std::string_view other : {"include", "import", "from", "extends", "block", "autoescape", "print"})
      if (name == other) fail_at(at, "the tag '", name, "' is not supported");
    fail_at(at, "there is no tag '", printable(name), "'");
  }

  Statement parse_if(int32_t at) {
    If made;
    const size_t unknown = unknown_.size();
    while (true) {
      ExpressionPtr condition = parse_tuple(Conditionals::kNo);
      made.branches.emplace_back(std::move(condition), parse_opened({"elif", "else", "endif"}));
      if (!skip_name("elif")) break;
    }
    if (skip_name("else")) made.otherwise = parse_opened({"endif"});
    next();
    unknown_.resize(unknown);
    return {at, std::move(made)};
  }

  Statement parse_for(int32_t at) {
    For made;
    made.target = parse_target(Namespaces::kNo, "in");
    made.loop = symbol_of("loop");
    if (!skip_name("in")) fail_unexpected("'in'");
    made.items = parse_tuple(Conditionals::kNo, "recursive");
    if (skip_name("if")) made.condition = parse_expression();
    made.is_recursive = skip_name("recursive");
    ++loops_;
    made.body = parse_opened({"else", "endfor"});
    --loops_;
    if (skip_name("else")) made.otherwise = parse_opened({"endfor"});
    next();
    return {at, std::move(made)};
  }

  Statement parse_set(int32_t at) {
    Target target = parse_target(Namespaces::kYes);
    if (skip_operator("=")) return {at, Set{std::move(target), parse_tuple()}};
    ExpressionPtr filter = is_operator("|") ? parse_filters(nullptr) : nullptr;
    return {at, SetBlock{std::move(target), std::move(filter), parse_body("endset")}};
  }

  Signature parse_signature() {
    Signature made;
    expect_operator("(");
    while (!is_operator(")")) {
      if (!made.parameters.empty()) expect_operator(",");
      made.names.push_back(expect_name());
      const Symbol symbol = symbol_of(made.names.back());
      ExpressionPtr otherwise;
      if (skip_operator("=")) {
        otherwise = parse_expression();
      } else if (!made.parameters.empty() && made.parameters.back().second) {
        fail_at(line(), "a parameter without a default follows one with a default");
      }
      made.parameters.emplace_back(symbol, std::move(otherwise));
    }
    expect_operator(")");
    return made;
  }

  // Parses a macro's body, and notes which of the special variables it reads.
  Block parse_macro_body(std::string_view end, Signature& signature) {
    const int32_t loops = std::exchange(loops_, 0);
    const size_t begin = position();
    Block body = parse_body(end);
    signature.takes_varargs = reads("varargs", begin);
    signature.takes_kwargs = reads("kwargs", begin);
    signature.takes_caller = reads("caller", begin);
    signature.varargs = symbol_of("varargs"), signature.kwargs = symbol_of("kwargs");
    signature.caller = symbol_of("caller");
    loops_ = loops;
    return body;
  }

  Statement parse_macro(int32_t at) {
    auto made = std::make_unique<MacroDefinition>();
    made->name = expect_name();
    made->symbol = symbol_of(made->name);
    made->signature = parse_signature();
    made->body = parse_macro_body("endmacro", made->signature);
    return {at, std::unique_ptr<const MacroDefinition>(std::move(made))};
  }

  Statement parse_call_block(int32_t at) {
    auto caller = std::make_unique<MacroDefinition>();
    caller->name = "caller";
    if (is_operator("(")) caller->signature = parse_signature();
    ExpressionPtr call = parse_expression();
    if (!std::holds_alternative<Call>(call->node)) fail_at(at, "expected a call behind 'call'");
    caller->body = parse_macro_body("endcall", caller->signature);
    return {at, CallBlock{std::move(call), std::move(caller)}};
  }

  Statement parse_filter_block(int32_t at) {
    ExpressionPtr filter = parse_filters(parse_filter_name(nullptr));
    return {at, FilterBlock{std::move(filter), parse_body("endfilter")}};
  }

  Statement parse_with(int32_t at) {
    With made;
    while (!is(Kind::kBlockEnd)) {
      if (!made.variables.empty()) expect_operator(",");
      Target target = parse_target(Namespaces::kNo);
      expect_operator("=");
      made.variables.emplace_back(std::move(target), parse_expression());
    }
    made.body = parse_body("endwith");
    return {at, std::move(made)};
  }

  Statement parse_generation(int32_t at) { return {at, Generation{parse_body("endgeneration")}}; }
  Statement parse_break(int32_t at) {
    require_loop(at, "break");
    return {at, Break{}};
  }
  Statement parse_continue(int32_t at) {
    require_loop(at, "continue");
    return {at, Continue{}};
  }
  void require_loop(int32_t at, std::string_view word) const {
    if (loops_ == 0) fail_at(at, "'", word, "' is not inside a loop");
  }

  int32_t loops_ = 0;  // around what is parsed
};

}  // namespace

Template parse(std::string_view source) {
  HR_REQUIRE(source.size() <= kMaxTemplateBytes, ErrorCode::kModelFile, "it has ", source.size(),
             " bytes, expected at most ", kMaxTemplateBytes);
  return Parser(tokens_of(source)).run();
}

}  // namespace headrace::jinja
