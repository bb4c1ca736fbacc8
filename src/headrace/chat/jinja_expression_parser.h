// Parses Jinja's expressions. The statements' parser builds on it.
#pragma once
#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "headrace/chat/jinja_ast.h"
#include "headrace/chat/jinja_lexer.h"

namespace headrace::jinja {

class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

 protected:
  enum class Conditionals : uint8_t { kYes, kNo };
  enum class Namespaces : uint8_t { kYes, kNo };
  // Counts how deep brackets and blocks nest. Error: deeper than kMaxNesting.
  class Nesting {
   public:
    explicit Nesting(ExpressionParser& parser);
    ~Nesting() { --parser_.nesting_; }

   private:
    ExpressionParser& parser_;
  };

  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  int32_t line() const { return current().line; }
  Token next();
  bool is(Token::Kind kind) const { return current().kind == kind; }
  bool is_operator(std::string_view text) const { return is(Token::Kind::kOperator) && current().text == text; }
  bool is_name(std::string_view text) const { return is(Token::Kind::kName) && current().text == text; }
  bool skip_operator(std::string_view text);
  bool skip_name(std::string_view text);
  void expect_operator(std::string_view text);
  std::string expect_name();
  void expect(Token::Kind kind);
  [[noreturn]] void fail_unexpected(std::string_view expected) const;

  size_t position() const { return at_; }
  bool reads(std::string_view name, size_t from) const;  // a token since `from` is this name

  Symbol symbol_of(const std::string& name);
  ExpressionPtr parse_expression(Conditionals conditionals = Conditionals::kYes);
  // An expression, or a tuple without brackets; `end`: the name behind it, if it is not the tag's end.
  ExpressionPtr parse_tuple(Conditionals conditionals = Conditionals::kYes, std::string_view end = "");
  ExpressionPtr parse_filters(ExpressionPtr input);      // at a "|"
  ExpressionPtr parse_filter_name(ExpressionPtr input);  // behind it
  Target parse_target(Namespaces namespaces, std::string_view end = "");

  std::vector<std::string> symbols_;
  // Filters and tests that do not exist: an error, unless a condition may leave them out. Then it is one of their use.
  struct Unknown {
    int32_t line;
    std::string message;
  };
  std::vector<Unknown> unknown_;

 private:
  ExpressionPtr parse_conditional();
  ExpressionPtr parse_or();
  ExpressionPtr parse_and();
  ExpressionPtr parse_not();
  ExpressionPtr parse_comparison();
  ExpressionPtr parse_sum();
  ExpressionPtr parse_concatenation();
  ExpressionPtr parse_product();
  ExpressionPtr parse_power();
  enum class Filters : uint8_t { kYes, kNo };
  ExpressionPtr parse_unary(Filters filters = Filters::kYes);
  ExpressionPtr parse_primary();
  ExpressionPtr parse_named();
  ExpressionPtr parse_bracketed();
  ExpressionPtr parse_list();
  ExpressionPtr parse_dict();
  ExpressionPtr parse_postfix(ExpressionPtr object);
  ExpressionPtr parse_filter_expression(ExpressionPtr input);
  ExpressionPtr parse_attribute(ExpressionPtr object);
  ExpressionPtr parse_subscript(ExpressionPtr object);
  ExpressionPtr parse_subscribed(ExpressionPtr object);
  ExpressionPtr parse_call(ExpressionPtr callee);
  ExpressionPtr parse_test(ExpressionPtr input);
  std::unique_ptr<Arguments> parse_arguments();
  void parse_argument(Arguments& arguments);
  Target parse_single_target(Namespaces namespaces);
  bool is_tuple_end(std::string_view end) const;
  std::optional<Operator> skip_comparison();

  template <class Node>
  static ExpressionPtr make(int32_t line, Node node, int32_t depth);
  template <class Node>
  static ExpressionPtr make(int32_t line, Node node, std::initializer_list<const Expression*> parts);

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int32_t nesting_ = 0;
  std::unordered_map<std::string, Symbol> symbol_places_;
};

}  // namespace headrace::jinja
