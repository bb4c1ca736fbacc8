#include "headrace/chat/jinja_expression_parser.h"

#include <algorithm>
#include <charconv>

#include "headrace/chat/jinja_parser.h"
#include "headrace/core/printable.h"

namespace headrace::jinja {
namespace {

using Kind = Token::Kind;

std::string describe(const Token& token) {
  switch (token.kind) {
    case Kind::kEnd: return "the template's end";
    case Kind::kData: return "text";
    case Kind::kVariableBegin: return "'{{'";
    case Kind::kVariableEnd: return "'}}'";
    case Kind::kBlockBegin: return "'{%'";
    case Kind::kBlockEnd: return "'%}'";
    default: return str("'", printable(token.text), "'");
  }
}

bool is_reserved(std::string_view name) {
  return name == "true" || name == "false" || name == "none" || name == "True" || name == "False" || name == "None";
}

Value integer_of(const Token& token) {
  std::string_view digits = token.text;
  const char mark = digits.size() > 2 ? static_cast<char>(digits[1] | 0x20) : '0';
  const int base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
  if (base != 10) digits.remove_prefix(2);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  if (error != std::errc() || end != digits.data() + digits.size())
    fail_at(token.line, "the integer ", printable(token.text), " has more than 64 bits");
  return value;
}

Value float_of(const Token& token) {
  double value = 0;
  std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
  return value;
}

}  // namespace

ExpressionParser::Nesting::Nesting(ExpressionParser& parser) : parser_(parser) {
  if (++parser_.nesting_ > kMaxNesting) fail_at(parser_.line(), "it nests deeper than ", kMaxNesting);
}

// `depth`: of the deepest expression within.
template <class Node>
ExpressionPtr ExpressionParser::make(int32_t line, Node node, int32_t depth) {
  if (depth >= kMaxOperands) fail_at(line, "an expression has more than ", kMaxOperands, " operands in a row");
  return std::make_unique<const Expression>(Expression{line, depth + 1, std::move(node)});
}

template <class Node>
ExpressionPtr ExpressionParser::make(int32_t line, Node node, std::initializer_list<const Expression*> parts) {
  int32_t depth = 0;
  for (const Expression* part : parts)
    if (part != nullptr) depth = std::max(depth, part->depth);
  return make(line, std::move(node), depth);
}

Token ExpressionParser::next() {
  Token token = current();
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool ExpressionParser::skip_operator(std::string_view text) {
  if (!is_operator(text)) return false;
  next();
  return true;
}

bool ExpressionParser::skip_name(std::string_view text) {
  if (!is_name(text)) return false;
  next();
  return true;
}

void ExpressionParser::fail_unexpected(std::string_view expected) const {
  fail_at(line(), "expected ", expected, ", found ", describe(current()));
}

void ExpressionParser::expect_operator(std::string_view text) {
  if (!skip_operator(text)) fail_unexpected(str("'", text, "'"));
}

std::string ExpressionParser::expect_name() {
  if (!is(Kind::kName)) fail_unexpected("a name");
  return next().text;
}

void ExpressionParser::expect(Kind kind) {
  if (!is(kind)) fail_unexpected(describe({kind, 0, ""}));
  next();
}

bool ExpressionParser::reads(std::string_view name, size_t from) const {
  return std::any_of(tokens_.begin() + static_cast<std::ptrdiff_t>(from),
                     tokens_.begin() + static_cast<std::ptrdiff_t>(at_),
                     [name](const Token& token) { return token.kind == Kind::kName && token.text == name; });
}

Symbol ExpressionParser::symbol_of(const std::string& name) {
  const auto [place, is_new] = symbol_places_.try_emplace(name, static_cast<Symbol>(symbols_.size()));
  if (is_new) symbols_.push_back(name);
  return place->second;
}

ExpressionPtr ExpressionParser::parse_expression(Conditionals conditionals) {
  const Nesting nesting(*this);
  return conditionals == Conditionals::kYes ? parse_conditional() : parse_or();
}

ExpressionPtr ExpressionParser::parse_conditional() {
  const int32_t at = line();
  const size_t unknown = unknown_.size();
  ExpressionPtr value = parse_or();
  while (skip_name("if")) {
    ExpressionPtr condition = parse_or(), otherwise;
    if (skip_name("else")) {
      const Nesting nesting(*this);
      otherwise = parse_conditional();
    }
    const auto parts = {value.get(), condition.get(), otherwise.get()};
    value = make(at, Conditional{std::move(condition), std::move(value), std::move(otherwise)}, parts);
    unknown_.resize(unknown);
  }
  return value;
}

ExpressionPtr ExpressionParser::parse_or() {
  ExpressionPtr left = parse_and();
  while (is_name("or")) {
    const int32_t at = next().line;
    ExpressionPtr right = parse_and();
    const auto parts = {left.get(), right.get()};
    left = make(at, Binary{Operator::kOr, std::move(left), std::move(right)}, parts);
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_and() {
  ExpressionPtr left = parse_not();
  while (is_name("and")) {
    const int32_t at = next().line;
    ExpressionPtr right = parse_not();
    const auto parts = {left.get(), right.get()};
    left = make(at, Binary{Operator::kAnd, std::move(left), std::move(right)}, parts);
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_not() {
  if (!is_name("not")) return parse_comparison();
  const Nesting nesting(*this);
  const int32_t at = next().line;
  ExpressionPtr operand = parse_not();
  const auto parts = {operand.get()};
  return make(at, Unary{Operator::kNot, std::move(operand)}, parts);
}

std::optional<Operator> ExpressionParser::skip_comparison() {
  constexpr std::pair<std::string_view, Operator> kSigns[] = {
      {"==", Operator::kEqual},     {"!=", Operator::kUnequal}, {"<", Operator::kLess},
      {"<=", Operator::kLessEqual}, {">", Operator::kGreater},  {">=", Operator::kGreaterEqual}};
  for (const auto& [sign, op] : kSigns)
    if (skip_operator(sign)) return op;
  if (skip_name("in")) return Operator::kIn;
  if (!is_name("not") || ahead().kind != Kind::kName || ahead().text != "in") return std::nullopt;
  next(), next();
  return Operator::kNotIn;
}

ExpressionPtr ExpressionParser::parse_comparison() {
  const int32_t at = line();
  ExpressionPtr first = parse_sum();
  std::vector<std::pair<Operator, ExpressionPtr>> others;
  int32_t depth = first->depth;
  while (const auto op = skip_comparison()) {
    others.emplace_back(*op, parse_sum());
    depth = std::max(depth, others.back().second->depth);
  }
  if (others.empty()) return first;
  return make(at, Comparison{std::move(first), std::move(others)}, depth);
}

ExpressionPtr ExpressionParser::parse_sum() {
  ExpressionPtr left = parse_concatenation();
  while (is_operator("+") || is_operator("-")) {
    const Token sign = next();
    ExpressionPtr right = parse_concatenation();
    const auto parts = {left.get(), right.get()};
    const Operator op = sign.text == "+" ? Operator::kAdd : Operator::kSubtract;
    left = make(sign.line, Binary{op, std::move(left), std::move(right)}, parts);
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_concatenation() {
  const int32_t at = line();
  ExpressionPtr first = parse_product();
  if (!is_operator("~")) return first;
  Concatenation all;
  int32_t depth = first->depth;
  all.items.push_back(std::move(first));
  while (skip_operator("~")) {
    all.items.push_back(parse_product());
    depth = std::max(depth, all.items.back()->depth);
  }
  return make(at, std::move(all), depth);
}

ExpressionPtr ExpressionParser::parse_product() {
  constexpr std::pair<std::string_view, Operator> kSigns[] = {
      {"*", Operator::kMultiply}, {"/", Operator::kDivide}, {"//", Operator::kFloorDivide}, {"%", Operator::kModulo}};
  ExpressionPtr left = parse_power();
  while (true) {
    const auto* sign = std::ranges::find_if(kSigns, [this](const auto& one) { return is_operator(one.first); });
    if (sign == std::end(kSigns)) return left;
    const int32_t at = next().line;
    ExpressionPtr right = parse_power();
    const auto parts = {left.get(), right.get()};
    left = make(at, Binary{sign->second, std::move(left), std::move(right)}, parts);
  }
}

ExpressionPtr ExpressionParser::parse_power() {
  ExpressionPtr left = parse_unary();
  while (is_operator("**")) {
    const int32_t at = next().line;
    ExpressionPtr right = parse_unary();
    const auto parts = {left.get(), right.get()};
    left = make(at, Binary{Operator::kPower, std::move(left), std::move(right)}, parts);
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_unary(Filters filters) {
  ExpressionPtr value;
  if (is_operator("-") || is_operator("+")) {
    const Nesting nesting(*this);
    const Token sign = next();
    ExpressionPtr operand = parse_unary(Filters::kNo);
    const auto parts = {operand.get()};
    value =
        make(sign.line, Unary{sign.text == "-" ? Operator::kNegative : Operator::kPositive, std::move(operand)}, parts);
  } else {
    value = parse_primary();
  }
  value = parse_postfix(std::move(value));
  return filters == Filters::kYes ? parse_filter_expression(std::move(value)) : std::move(value);
}

ExpressionPtr ExpressionParser::parse_primary() {
  const int32_t at = line();
  switch (current().kind) {
    case Kind::kName: return parse_named();
    case Kind::kInteger: return make(at, Constant{integer_of(next())}, {});
    case Kind::kFloat: return make(at, Constant{float_of(next())}, {});
    case Kind::kString: {
      std::string text;
      while (is(Kind::kString)) text += next().text;
      return make(at, Constant{constant_text(text)}, {});
    }
    default: return parse_bracketed();
  }
}

ExpressionPtr ExpressionParser::parse_named() {
  const Token name = next();
  if (name.text == "true" || name.text == "True") return make(name.line, Constant{true}, {});
  if (name.text == "false" || name.text == "False") return make(name.line, Constant{false}, {});
  if (name.text == "none" || name.text == "None") return make(name.line, Constant{None{}}, {});
  return make(name.line, Name{symbol_of(name.text)}, {});
}

ExpressionPtr ExpressionParser::parse_bracketed() {
  if (is_operator("[")) return parse_list();
  if (is_operator("{")) return parse_dict();
  if (!is_operator("(")) fail_unexpected("an expression");
  const int32_t at = next().line;
  if (skip_operator(")")) return make(at, ListDisplay{{}, List::Kind::kTuple}, {});
  ExpressionPtr value = parse_tuple();
  expect_operator(")");
  return value;
}

ExpressionPtr ExpressionParser::parse_list() {
  const int32_t at = next().line;
  ListDisplay list{{}, List::Kind::kList};
  int32_t depth = 0;
  while (!is_operator("]")) {
    if (!list.items.empty()) expect_operator(",");
    if (is_operator("]")) break;
    list.items.push_back(parse_expression());
    depth = std::max(depth, list.items.back()->depth);
  }
  expect_operator("]");
  return make(at, std::move(list), depth);
}

ExpressionPtr ExpressionParser::parse_dict() {
  const int32_t at = next().line;
  DictDisplay dict;
  int32_t depth = 0;
  while (!is_operator("}")) {
    if (!dict.items.empty()) expect_operator(",");
    if (is_operator("}")) break;
    ExpressionPtr key = parse_expression();
    expect_operator(":");
    ExpressionPtr value = parse_expression();
    depth = std::max({depth, key->depth, value->depth});
    dict.items.emplace_back(std::move(key), std::move(value));
  }
  expect_operator("}");
  return make(at, std::move(dict), depth);
}

bool ExpressionParser::is_tuple_end(std::string_view end) const {
  return is(Kind::kVariableEnd) || is(Kind::kBlockEnd) || is_operator(")") || (!end.empty() && is_name(end));
}

ExpressionPtr ExpressionParser::parse_tuple(Conditionals conditionals, std::string_view end) {
  const int32_t at = line();
  ListDisplay tuple{{}, List::Kind::kTuple};
  int32_t depth = 0;
  if (is_tuple_end(end)) fail_unexpected("an expression");
  while (!is_tuple_end(end)) {
    tuple.items.push_back(parse_expression(conditionals));
    depth = std::max(depth, tuple.items.back()->depth);
    if (is_operator(",")) {
      next();
      continue;
    }
    if (tuple.items.size() == 1) return std::move(tuple.items.front());
    break;
  }
  return make(at, std::move(tuple), depth);
}

ExpressionPtr ExpressionParser::parse_postfix(ExpressionPtr object) {
  while (true) {
    if (is_operator(".")) {
      object = parse_attribute(std::move(object));
    } else if (is_operator("[")) {
      object = parse_subscript(std::move(object));
    } else if (is_operator("(")) {
      object = parse_call(std::move(object));
    } else {
      return object;
    }
  }
}

ExpressionPtr ExpressionParser::parse_attribute(ExpressionPtr object) {
  const int32_t at = next().line;
  const auto parts = {object.get()};
  if (is(Kind::kName)) return make(at, Attribute{std::move(object), constant_text(next().text)}, parts);
  if (!is(Kind::kInteger)) fail_unexpected("a name or number");
  ExpressionPtr key = make(at, Constant{integer_of(next())}, {});
  return make(at, Item{std::move(object), std::move(key)}, parts);
}

ExpressionPtr ExpressionParser::parse_subscript(ExpressionPtr object) {
  next();
  ExpressionPtr value = parse_subscribed(std::move(object));
  expect_operator("]");
  return value;
}

ExpressionPtr ExpressionParser::parse_subscribed(ExpressionPtr object) {
  const int32_t at = line();
  const auto bound = [this] { return is_operator(":") || is_operator("]") ? nullptr : parse_expression(); };
  if (is_operator("]")) fail_unexpected("an index");
  ExpressionPtr begin = bound();
  if (!is_operator(":")) {
    if (is_operator(",")) fail_at(at, "an index of several parts is not supported");
    const auto parts = {object.get(), begin.get()};
    return make(at, Item{std::move(object), std::move(begin)}, parts);
  }
  next();
  ExpressionPtr end = bound(), step = skip_operator(":") ? bound() : nullptr;
  const auto parts = {object.get(), begin.get(), end.get(), step.get()};
  return make(at, Slice{std::move(object), std::move(begin), std::move(end), std::move(step)}, parts);
}

ExpressionPtr ExpressionParser::parse_call(ExpressionPtr callee) {
  const int32_t at = line();
  ArgumentsPtr arguments = parse_arguments();
  const int32_t depth = std::max(callee->depth, arguments->depth);
  return make(at, Call{std::move(callee), std::move(arguments)}, depth);
}

std::unique_ptr<Arguments> ExpressionParser::parse_arguments() {
  auto arguments = std::make_unique<Arguments>();
  expect_operator("(");
  for (bool first = true; !is_operator(")"); first = false) {
    if (!first) expect_operator(",");
    if (is_operator(")")) break;
    parse_argument(*arguments);
  }
  expect_operator(")");
  return arguments;
}

void ExpressionParser::parse_argument(Arguments& arguments) {
  const auto parsed = [&] {
    ExpressionPtr value = parse_expression();
    arguments.depth = std::max(arguments.depth, value->depth);
    return value;
  };
  const auto require = [this](bool condition) {
    if (!condition) fail_at(line(), "the arguments of a call are in a wrong order");
  };
  if (skip_operator("*")) {
    require(!arguments.rest && !arguments.keyword_rest);
    arguments.rest = parsed();
  } else if (skip_operator("**")) {
    require(!arguments.keyword_rest);
    arguments.keyword_rest = parsed();
  } else if (is(Kind::kName) && ahead().kind == Kind::kOperator && ahead().text == "=") {
    require(!arguments.keyword_rest);
    TextPtr name = constant_text(next().text);
    next();
    arguments.keywords.emplace_back(std::move(name), parsed());
  } else {
    require(!arguments.rest && !arguments.keyword_rest && arguments.keywords.empty());
    arguments.positional.push_back(parsed());
  }
}

ExpressionPtr ExpressionParser::parse_filter_expression(ExpressionPtr input) {
  while (true) {
    if (is_operator("|")) {
      input = parse_filters(std::move(input));
    } else if (is_name("is")) {
      input = parse_test(std::move(input));
    } else if (is_operator("(")) {
      input = parse_call(std::move(input));
    } else {
      return input;
    }
  }
}

ExpressionPtr ExpressionParser::parse_filters(ExpressionPtr input) {
  while (skip_operator("|")) input = parse_filter_name(std::move(input));
  return input;
}

ExpressionPtr ExpressionParser::parse_filter_name(ExpressionPtr input) {
  const int32_t at = line();
  std::string name = expect_name();
  while (skip_operator(".")) name += "." + expect_name();
  if (!is_filter(name)) unknown_.push_back({at, str("there is no filter '", printable(name), "'")});
  ArgumentsPtr arguments = is_operator("(") ? parse_arguments() : std::make_unique<Arguments>();
  const int32_t depth = std::max(input == nullptr ? 0 : input->depth, arguments->depth);
  return make(at, Filter{std::move(input), std::move(name), std::move(arguments)}, depth);
}

ExpressionPtr ExpressionParser::parse_test(ExpressionPtr input) {
  const int32_t at = next().line;
  const bool negated = skip_name("not");
  std::string name = expect_name();
  while (skip_operator(".")) name += "." + expect_name();
  if (!is_test(name)) unknown_.push_back({at, str("there is no test '", printable(name), "'")});
  auto arguments = std::make_unique<Arguments>();
  if (is_operator("(")) {
    arguments = parse_arguments();
  } else if ((is(Kind::kName) && !is_name("else") && !is_name("or") && !is_name("and")) || is(Kind::kString) ||
             is(Kind::kInteger) || is(Kind::kFloat) || is_operator("[") || is_operator("{")) {
    if (is_name("is")) fail_at(line(), "tests cannot be chained with 'is'");
    arguments->positional.push_back(parse_postfix(parse_primary()));
    arguments->depth = arguments->positional.back()->depth;
  }
  const int32_t depth = std::max(input->depth, arguments->depth);
  ExpressionPtr test = make(at, Test{std::move(input), std::move(name), std::move(arguments)}, depth);
  if (!negated) return test;
  const auto inner = {test.get()};
  return make(at, Unary{Operator::kNot, std::move(test)}, inner);
}

Target ExpressionParser::parse_single_target(Namespaces namespaces) {
  if (skip_operator("(")) {
    const Nesting nesting(*this);
    Target inner = parse_target(namespaces);
    expect_operator(")");
    return inner;
  }
  const int32_t at = line();
  const std::string name = expect_name();
  if (is_reserved(name)) fail_at(at, "'", name, "' cannot be assigned to");
  Target target{.symbol = symbol_of(name), .line = at};
  if (namespaces == Namespaces::kYes && skip_operator(".")) target.attribute = constant_text(expect_name());
  return target;
}

Target ExpressionParser::parse_target(Namespaces namespaces, std::string_view end) {
  Target all{.is_tuple = true, .line = line()};
  while (true) {
    all.parts.push_back(parse_single_target(namespaces));
    if (!skip_operator(",")) {
      if (all.parts.size() == 1) return std::move(all.parts.front());
      return all;
    }
    if (is_tuple_end(end) || is_operator("=")) return all;
  }
}

}  // namespace headrace::jinja
