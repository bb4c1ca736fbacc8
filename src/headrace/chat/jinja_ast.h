// A parsed Jinja template.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "headrace/chat/jinja_value.h"

namespace headrace::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<const Expression>;

using Symbol = int32_t;  // of a variable: its place in Template::symbols

struct Arguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<TextPtr, ExpressionPtr>> keywords;
  ExpressionPtr rest, keyword_rest;  // *args and **kwargs; null if absent
  int32_t depth = 0;                 // of expressions within it
};
using ArgumentsPtr = std::unique_ptr<const Arguments>;

struct Constant {
  Value value;
};
struct Name {
  Symbol symbol;
};
struct Attribute {  // object.name
  ExpressionPtr object;
  TextPtr name;
};
struct Item {  // object[key]
  ExpressionPtr object, key;
};
struct Slice {  // object[begin:end:step]; null where absent
  ExpressionPtr object, begin, end, step;
};
struct Call {
  ExpressionPtr callee;
  ArgumentsPtr arguments;
};
struct Filter {
  ExpressionPtr input;  // null in a filter block: its text
  std::string name;
  ArgumentsPtr arguments;
};
struct Test {
  ExpressionPtr input;
  std::string name;
  ArgumentsPtr arguments;
};
struct ListDisplay {
  std::vector<ExpressionPtr> items;
  List::Kind kind;
};
struct DictDisplay {
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> items;
};
enum class Operator : uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kEqual,
  kUnequal,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
  kAnd,
  kOr,
  kNot,
  kNegative,
  kPositive
};
struct Unary {
  Operator op;
  ExpressionPtr operand;
};
struct Binary {  // arithmetic, and, or
  Operator op;
  ExpressionPtr left, right;
};
struct Comparison {
  ExpressionPtr first;
  std::vector<std::pair<Operator, ExpressionPtr>> others;
};
struct Concatenation {
  std::vector<ExpressionPtr> items;
};
struct Conditional {
  ExpressionPtr condition, then, otherwise;  // otherwise may be null
};

struct Expression {
  int32_t line;
  int32_t depth;  // of expressions within it
  std::variant<Constant, Name, Attribute, Item, Slice, Call, Filter, Test, ListDisplay, DictDisplay, Unary, Binary,
               Comparison, Concatenation, Conditional>
      node;
};

// A place to assign to: a name, an attribute of a namespace, or several of them.
struct Target {
  Symbol symbol = -1;           // of the name or the namespace
  TextPtr attribute = nullptr;  // null unless it is one of a namespace
  std::vector<Target> parts = {};
  bool is_tuple = false;
  int32_t line = 0;
};

struct Statement;
using Block = std::vector<Statement>;

struct Data {
  TextPtr text;
};
struct Output {
  ExpressionPtr value;
};
struct If {
  std::vector<std::pair<ExpressionPtr, Block>> branches;
  Block otherwise;
};
struct For {
  Target target;
  ExpressionPtr items, condition;  // condition may be null
  bool is_recursive = false;
  Symbol loop = -1;  // of the variable "loop"
  Block body, otherwise;
};
struct Set {
  Target target;
  ExpressionPtr value;
};
struct SetBlock {
  Target target;
  ExpressionPtr filter;  // null if there is none
  Block body;
};
struct Signature {
  std::vector<std::pair<Symbol, ExpressionPtr>> parameters;  // and their defaults, null if absent
  std::vector<std::string> names;
  bool takes_varargs = false, takes_kwargs = false, takes_caller = false;  // if the body reads these names
  Symbol varargs = -1, kwargs = -1, caller = -1;
};
struct MacroDefinition {
  std::string name;
  Symbol symbol = -1;  // -1: a call block
  Signature signature;
  Block body;
};
struct CallBlock {
  ExpressionPtr call;  // is a Call
  std::unique_ptr<const MacroDefinition> caller;
};
struct FilterBlock {
  ExpressionPtr filter;
  Block body;
};
struct With {
  std::vector<std::pair<Target, ExpressionPtr>> variables;
  Block body;
};
struct Generation {  // marks what the assistant said; prints its body
  Block body;
};
struct Break {};
struct Continue {};

struct Statement {
  int32_t line;
  std::variant<Data, Output, If, For, Set, SetBlock, std::unique_ptr<const MacroDefinition>, CallBlock, FilterBlock,
               With, Generation, Break, Continue>
      node;
};

struct Template {
  Block body;
  std::vector<std::string> symbols;
};

}  // namespace headrace::jinja
