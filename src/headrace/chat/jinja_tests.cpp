// Jinja's tests: x is defined.
#include <algorithm>
#include <iterator>

#include "headrace/chat/jinja_access.h"
#include "headrace/chat/jinja_arguments.h"
#include "headrace/chat/jinja_filters.h"
#include "headrace/chat/jinja_operators.h"
#include "headrace/chat/jinja_parser.h"
#include "headrace/chat/jinja_text.h"

namespace headrace::jinja {
namespace {

using TestBody = bool (*)(const Context&, const Value&, const CallArguments&);

template <bool (*passes)(const Value&)>
bool plain(const Context&, const Value& value, const CallArguments& arguments) {
  const Parameters none("test", arguments, {});
  return passes(value);
}

bool is_defined(const Value& value) { return !value.is_undefined(); }
bool is_undefined(const Value& value) { return value.is_undefined(); }
bool is_none(const Value& value) { return value.is_none(); }
bool is_boolean(const Value& value) { return value.is_bool(); }
bool is_false(const Value& value) { return value.is_bool() && value.integer() == 0; }
bool is_really_true(const Value& value) { return value.is_bool() && value.integer() != 0; }
bool is_whole(const Value& value) { return value.is_integer() && !value.is_bool(); }
bool is_float(const Value& value) { return value.is_float(); }
bool is_number(const Value& value) { return value.is_number(); }
bool is_text(const Value& value) { return value.text() != nullptr; }
bool is_mapping(const Value& value) { return value.dict() != nullptr; }
bool is_escaped(const Value& value) { return is_text(value) && value.text()->is_markup; }

bool is_sequence(const Value& value) {
  const bool range = value.object() != nullptr && value.object()->kind == Object::Kind::kRange;
  return value.is_undefined() || is_text(value) || is_mapping(value) || value.list() != nullptr || range;
}

bool is_callable(const Value& value) {
  if (value.is_undefined()) return true;  // it has a __call__, which fails
  if (value.object() == nullptr) return false;
  switch (value.object()->kind) {
    case Object::Kind::kMacro:
    case Object::Kind::kLoop:
    case Object::Kind::kFunction:
    case Object::Kind::kMethod:
    case Object::Kind::kJoiner: return true;
    default: return false;
  }
}

Value remainder(const Context& context, const Value& value, int64_t divisor) {
  return arithmetic(context, Operator::kModulo, value, divisor);
}

template <int64_t rest>
bool has_rest_of_two(const Context& context, const Value& value, const CallArguments& arguments) {
  const Parameters none("test", arguments, {});
  return equal(context, remainder(context, value, 2), rest);
}

bool is_divisible(const Context& context, const Value& value, const CallArguments& arguments) {
  const Parameters given("divisibleby", arguments, {"num"}, 1);
  return equal(context, arithmetic(context, Operator::kModulo, value, *given[0]), int64_t{0});
}

template <Operator op>
bool compares(const Context& context, const Value& value, const CallArguments& arguments) {
  const Parameters given("test", arguments, {"other"}, 1);
  return compare(context, op, value, *given[0]);
}

template <bool (*is_case)(const Text&)>
bool has_case(const Context& context, const Value& value, const CallArguments& arguments) {
  const Parameters none("test", arguments, {});
  return is_case(*to_text(context, value));
}

// The same object in Python: equal small values and the very container.
bool is_same(const Context& context, const Value& value, const CallArguments& arguments) {
  const Parameters given("sameas", arguments, {"other"}, 1);
  const Value& other = *given[0];
  if (value.list() != nullptr || other.list() != nullptr) return value.list() == other.list();
  if (value.dict() != nullptr || other.dict() != nullptr) return value.dict() == other.dict();
  return type_name(value) == type_name(other) && equal(context, value, other);
}

template <bool (*exists)(std::string_view)>
bool names(const Context&, const Value& value, const CallArguments& arguments) {
  const Parameters none("test", arguments, {});
  return value.text() != nullptr && exists(value.text()->bytes);
}

constexpr std::pair<std::string_view, TestBody> kTests[] = {{"!=", compares<Operator::kUnequal>},
                                                            {"<", compares<Operator::kLess>},
                                                            {"<=", compares<Operator::kLessEqual>},
                                                            {"==", compares<Operator::kEqual>},
                                                            {">", compares<Operator::kGreater>},
                                                            {">=", compares<Operator::kGreaterEqual>},
                                                            {"boolean", plain<is_boolean>},
                                                            {"callable", plain<is_callable>},
                                                            {"defined", plain<is_defined>},
                                                            {"divisibleby", is_divisible},
                                                            {"eq", compares<Operator::kEqual>},
                                                            {"equalto", compares<Operator::kEqual>},
                                                            {"escaped", plain<is_escaped>},
                                                            {"even", has_rest_of_two<0>},
                                                            {"false", plain<is_false>},
                                                            {"filter", names<is_filter>},
                                                            {"float", plain<is_float>},
                                                            {"ge", compares<Operator::kGreaterEqual>},
                                                            {"greaterthan", compares<Operator::kGreater>},
                                                            {"gt", compares<Operator::kGreater>},
                                                            {"in", compares<Operator::kIn>},
                                                            {"integer", plain<is_whole>},
                                                            {"iterable", plain<is_iterable>},
                                                            {"le", compares<Operator::kLessEqual>},
                                                            {"lessthan", compares<Operator::kLess>},
                                                            {"lower", has_case<is_lower_text>},
                                                            {"lt", compares<Operator::kLess>},
                                                            {"mapping", plain<is_mapping>},
                                                            {"ne", compares<Operator::kUnequal>},
                                                            {"none", plain<is_none>},
                                                            {"number", plain<is_number>},
                                                            {"odd", has_rest_of_two<1>},
                                                            {"sameas", is_same},
                                                            {"sequence", plain<is_sequence>},
                                                            {"string", plain<is_text>},
                                                            {"test", names<is_test>},
                                                            {"true", plain<is_really_true>},
                                                            {"undefined", plain<is_undefined>},
                                                            {"upper", has_case<is_upper_text>}};

TestBody test_of(std::string_view name) {
  const auto* found = std::ranges::find(kTests, name, &std::pair<std::string_view, TestBody>::first);
  return found == std::end(kTests) ? nullptr : found->second;
}

}  // namespace

bool is_test(std::string_view name) { return test_of(name) != nullptr; }

bool Renderer::tested(std::string_view name, const Value& input, const CallArguments& arguments) {
  context_.meter.step();
  const TestBody body = test_of(name);
  if (body == nullptr) fail("No test named ", repr_of(name), " found.");
  return body(context_, input, arguments);
}

}  // namespace headrace::jinja
