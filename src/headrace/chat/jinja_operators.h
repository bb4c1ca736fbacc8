// Python's operators.
#pragma once
#include <string_view>

#include "headrace/chat/jinja_ast.h"
#include "headrace/chat/jinja_value.h"

namespace headrace::jinja {

// kAdd to kPower. Errors: operands that do not fit, division by zero, an integer of more than 64 bits.
Value arithmetic(const Context& context, Operator op, const Value& left, const Value& right);
// kNegative or kPositive.
Value signed_value(Operator op, const Value& operand);
// kEqual to kNotIn.
bool compare(const Context& context, Operator op, const Value& left, const Value& right);

[[noreturn]] void fail_integer_size();

}  // namespace headrace::jinja
