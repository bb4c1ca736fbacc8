#include "headrace/chat/jinja_operators.h"

#include <algorithm>
#include <cmath>

#include "headrace/chat/jinja_text.h"
#include "headrace/chat/python_format.h"

namespace headrace::jinja {
namespace {

std::string_view sign_of(Operator op) {
  switch (op) {
    case Operator::kAdd: return "+";
    case Operator::kSubtract: return "-";
    case Operator::kMultiply: return "*";
    case Operator::kDivide: return "/";
    case Operator::kFloorDivide: return "//";
    case Operator::kModulo: return "%";
    case Operator::kPower: return "** or pow()";
    default: return "?";
  }
}

[[noreturn]] void fail_operands(Operator op, const Value& left, const Value& right) {
  fail("unsupported operand type(s) for ", sign_of(op), ": '", type_name(left), "' and '", type_name(right), "'");
}

Value integer_power(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) fail("0.0 cannot be raised to a negative power");
    return std::pow(static_cast<double>(base), static_cast<double>(exponent));
  }
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) fail_integer_size();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) fail_integer_size();
  }
  return result;
}

// Rounds down, as Python does.
int64_t floor_divided(int64_t left, int64_t right) {
  if (right == -1) return left == INT64_MIN ? (fail_integer_size(), 0) : -left;
  const int64_t quotient = left / right;
  return left % right != 0 && (left < 0) != (right < 0) ? quotient - 1 : quotient;
}

Value integer_arithmetic(Operator op, int64_t left, int64_t right) {
  int64_t result = 0;
  bool overflows = false;
  switch (op) {
    case Operator::kAdd: overflows = __builtin_add_overflow(left, right, &result); break;
    case Operator::kSubtract: overflows = __builtin_sub_overflow(left, right, &result); break;
    case Operator::kMultiply: overflows = __builtin_mul_overflow(left, right, &result); break;
    case Operator::kPower: return integer_power(left, right);
    case Operator::kDivide:
      if (right == 0) fail("division by zero");
      return static_cast<double>(left) / static_cast<double>(right);
    default:
      if (right == 0) fail("integer division or modulo by zero");
      if (op == Operator::kFloorDivide) return floor_divided(left, right);
      return right == -1 ? int64_t{0} : left - floor_divided(left, right) * right;
  }
  if (overflows) fail_integer_size();
  return result;
}

double float_modulo(double left, double right) {
  const double rest = std::fmod(left, right);
  if (rest == 0) return std::copysign(0.0, right);
  return (rest < 0) != (right < 0) ? rest + right : rest;
}

Value float_arithmetic(Operator op, double left, double right) {
  switch (op) {
    case Operator::kAdd: return left + right;
    case Operator::kSubtract: return left - right;
    case Operator::kMultiply: return left * right;
    case Operator::kPower: {
      if (left == 0 && right < 0) fail("0.0 cannot be raised to a negative power");
      const double power = std::pow(left, right);
      if (std::isinf(power) && std::isfinite(left) && std::isfinite(right)) fail("Numerical result out of range");
      if (std::isnan(power) && !std::isnan(left) && !std::isnan(right)) fail("a complex number is not supported");
      return power;
    }
    case Operator::kDivide:
      if (right == 0) fail("float division by zero");
      return left / right;
    default: break;
  }
  if (right == 0) fail(op == Operator::kModulo ? "float modulo" : "float floor division by zero");
  return op == Operator::kModulo ? float_modulo(left, right) : std::floor((left - float_modulo(left, right)) / right);
}

Value repeated(const Context& context, const Value& value, int64_t count) {
  const auto times = static_cast<size_t>(std::max<int64_t>(count, 0));
  if (const Text* text = value.text()) {
    TextBuilder builder(&context.meter);
    builder.repeat(*text, times);
    return builder.finish();
  }
  const List& list = *value.list();
  size_t total = 0;
  if (__builtin_mul_overflow(times, list.items.size() * sizeof(Value), &total)) total = static_cast<size_t>(-1) / 2;
  const HeldMemory held(&context.meter, total);
  std::vector<Value> items;
  for (size_t i = 0; i < times && !list.items.empty(); ++i) {
    context.meter.step(static_cast<int64_t>(list.items.size()));
    items.insert(items.end(), list.items.begin(), list.items.end());
  }
  return context.list(std::move(items), list.kind);
}

bool is_repeatable(const Value& value) { return value.text() != nullptr || value.list() != nullptr; }

Value sum_of_texts(const Context& context, const Text& left, const Text& right) {
  const bool is_markup = left.is_markup || right.is_markup;
  TextBuilder builder(&context.meter);
  for (const Text* text : {&left, &right}) {
    if (is_markup && !text->is_markup) {
      builder.append(*escaped_html(context, *text));
    } else {
      builder.append(*text);
    }
  }
  return is_markup ? builder.finish_markup() : builder.finish();
}

Value sum_of_lists(const Context& context, const List& left, const List& right) {
  std::vector<Value> items;
  items.reserve(left.items.size() + right.items.size());
  for (const List* list : {&left, &right}) items.insert(items.end(), list->items.begin(), list->items.end());
  context.meter.step(static_cast<int64_t>(items.size()));
  return context.list(std::move(items), left.kind);
}

Value sum(const Context& context, const Value& left, const Value& right) {
  if (left.text() != nullptr) {
    if (right.text() != nullptr) return sum_of_texts(context, *left.text(), *right.text());
    fail("can only concatenate str (not \"", type_name(right), "\") to str");
  }
  if (left.list() == nullptr) fail_operands(Operator::kAdd, left, right);
  if (right.list() != nullptr && right.list()->kind == left.list()->kind)
    return sum_of_lists(context, *left.list(), *right.list());
  fail("can only concatenate ", type_name(left), " (not \"", type_name(right), "\") to ", type_name(left));
}

}  // namespace

void fail_integer_size() { fail("an integer has more than 64 bits"); }

Value arithmetic(const Context& context, Operator op, const Value& left, const Value& right) {
  if (op == Operator::kModulo && left.text() != nullptr) return printf_formatted(context, *left.text(), right);
  for (const Value* value : {&left, &right})
    if (value->is_undefined()) fail(value->undefined().message());
  if (left.is_integer() && right.is_integer()) return integer_arithmetic(op, left.integer(), right.integer());
  if (left.is_number() && right.is_number()) return float_arithmetic(op, left.number(), right.number());
  if (op == Operator::kAdd) return sum(context, left, right);
  if (op == Operator::kMultiply && is_repeatable(left) && right.is_integer())
    return repeated(context, left, right.integer());
  if (op == Operator::kMultiply && is_repeatable(right) && left.is_integer())
    return repeated(context, right, left.integer());
  fail_operands(op, left, right);
}

Value signed_value(Operator op, const Value& operand) {
  const bool negative = op == Operator::kNegative;
  if (operand.is_undefined()) fail(operand.undefined().message());
  if (operand.is_float()) return negative ? -operand.number() : operand.number();
  if (!operand.is_integer()) fail("bad operand type for unary ", negative ? "-" : "+", ": '", type_name(operand), "'");
  if (negative && operand.integer() == INT64_MIN) fail_integer_size();
  return negative ? -operand.integer() : operand.integer();
}

bool compare(const Context& context, Operator op, const Value& left, const Value& right) {
  switch (op) {
    case Operator::kEqual: return equal(context, left, right);
    case Operator::kUnequal: return !equal(context, left, right);
    case Operator::kLess: return order_of(context, left, right, "<") < 0;
    case Operator::kLessEqual: return order_of(context, left, right, "<=") <= 0;
    case Operator::kGreater: return order_of(context, left, right, ">") > 0;
    case Operator::kGreaterEqual: return order_of(context, left, right, ">=") >= 0;
    case Operator::kIn: return contains(context, right, left);
    default: return !contains(context, right, left);
  }
}

}  // namespace headrace::jinja
