#include "headrace/chat/jinja_renderer.h"

#include "headrace/chat/jinja_access.h"
#include "headrace/chat/jinja_operators.h"
#include "headrace/chat/jinja_scopes.h"

namespace headrace::jinja {
Renderer::Renderer(const Template& source, const Context& context, RenderLimits limits,
                   std::vector<std::optional<Value>> variables)
    : template_(source), context_(context), limits_(limits), variables_(std::move(variables)) {
  for (size_t i = 0; i < variables_.size(); ++i) {
    const Function::Body body = global_function(source.symbols[i]);
    if (!variables_[i] && body != nullptr) variables_[i] = kept(keep<Function>(body));
  }
}

TextPtr Renderer::run() {
  Captured output(*this);
  try {
    run(template_.body);
    return output.finish();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    throw Error(ErrorCode::kInvalidArgument, str("chat template, line ", line_, ": ", error.what()));
  }
}

// ---- Statements ----

Renderer::Flow Renderer::run(const Block& block) {
  const Depth depth(*this);
  for (const Statement& statement : block) {
    context_.meter.step();
    line_ = statement.line;
    const Flow flow = std::visit([this](const auto& node) { return run_node(node); }, statement.node);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

void Renderer::check_output() const {
  if (static_cast<int64_t>(out_->size()) > limits_.output_bytes)
    fail("its output has more than ", limits_.output_bytes, " bytes");
}

void Renderer::emit(const Value& value) {
  append_str(context_, value, *out_);
  check_output();
}

Renderer::Flow Renderer::run_node(const Data& node) {
  out_->append(*node.text);
  check_output();
  return Flow::kNext;
}

Renderer::Flow Renderer::run_node(const Output& node) {
  emit(evaluate(*node.value));
  return Flow::kNext;
}

Renderer::Flow Renderer::run_node(const If& node) {
  for (const auto& [condition, block] : node.branches)
    if (is_true(evaluate(*condition))) return run(block);
  return run(node.otherwise);
}

Renderer::Flow Renderer::run_node(const Set& node) {
  assign(node.target, evaluate(*node.value));
  return Flow::kNext;
}

TextPtr Renderer::captured(const Block& block) {
  const Scope scope(*this);
  Captured output(*this);
  run(block);
  return output.finish();
}

Renderer::Flow Renderer::run_node(const SetBlock& node) {
  Value text = captured(node.body);
  if (node.filter != nullptr) text = apply_all(*node.filter, text);
  assign(node.target, text);
  return Flow::kNext;
}

Renderer::Flow Renderer::run_node(const FilterBlock& node) {
  const Value text = captured(node.body);
  emit(apply_all(*node.filter, text));
  return Flow::kNext;
}

Renderer::Flow Renderer::run_node(const With& node) {
  std::vector<Value> values;
  values.reserve(node.variables.size());
  for (const auto& [target, value] : node.variables) values.push_back(evaluate(*value));
  const Scope scope(*this);
  for (size_t i = 0; i < values.size(); ++i) assign(node.variables[i].first, values[i]);
  return run(node.body);
}

Renderer::Flow Renderer::run_node(const Generation& node) {
  const Scope scope(*this);
  return run(node.body);
}

Renderer::Flow Renderer::run_node(const Break&) { return Flow::kBreak; }
Renderer::Flow Renderer::run_node(const Continue&) { return Flow::kContinue; }

Renderer::Flow Renderer::run_node(const std::unique_ptr<const MacroDefinition>& node) {
  assign(node->symbol, make_macro(*node));
  return Flow::kNext;
}

Renderer::Flow Renderer::run_node(const CallBlock& node) {
  const auto& call_node = std::get<Call>(node.call->node);
  const Value callee = evaluate(*call_node.callee);
  CallArguments arguments = arguments_of(*call_node.arguments);
  arguments.keywords.emplace_back(constant_text("caller"), make_macro(*node.caller));
  emit(call(callee, arguments));
  return Flow::kNext;
}

// ---- Variables ----

Value Renderer::lookup(Symbol symbol) {
  for (size_t i = bindings_.size(); i-- > frame_begin_;)
    if (bindings_[i].symbol == symbol) return bindings_[i].value;
  if (const auto& variable = variables_[static_cast<size_t>(symbol)]) return *variable;
  return context_.undefined(Undefined::Of::kName, "", template_.symbols[static_cast<size_t>(symbol)]);
}

void Renderer::assign(Symbol symbol, Value value) {
  if (is_outermost_) {
    variables_[static_cast<size_t>(symbol)] = std::move(value);
    return;
  }
  for (size_t i = scope_begin_; i < bindings_.size(); ++i) {
    if (bindings_[i].symbol != symbol) continue;
    bindings_[i].value = std::move(value);
    return;
  }
  bindings_.push_back({symbol, std::move(value)});
}

void Renderer::assign(const Target& target, const Value& value) {
  if (target.attribute != nullptr) {
    const Value names = lookup(target.symbol);
    if (names.object() == nullptr || names.object()->kind != Object::Kind::kNamespace)
      fail("cannot assign attribute on non-namespace object");
    return set_attribute(static_cast<Namespace&>(*names.object()), target.attribute, value);
  }
  if (!target.is_tuple) return assign(target.symbol, value);
  if (!is_iterable(value)) fail("cannot unpack non-iterable ", type_name(value), " object");
  const ListPtr items = items_of(context_, value);
  const size_t expected = target.parts.size(), found = items->items.size();
  if (found < expected) fail("not enough values to unpack (expected ", expected, ", got ", found, ")");
  if (found > expected) fail("too many values to unpack (expected ", expected, ")");
  for (size_t i = 0; i < expected; ++i) assign(target.parts[i], items->items[i]);
}

void Renderer::set_attribute(Namespace& names, const TextPtr& name, Value value) {
  for (auto& [known, place] : names.attributes) {
    context_.meter.step();
    if (known->bytes != name->bytes) continue;
    place = std::move(value);
    return;
  }
  memory_.emplace_back(&context_.meter, sizeof(names.attributes[0]));
  names.attributes.emplace_back(name, std::move(value));
}

// ---- Expressions ----

Value Renderer::evaluate(const Expression& expression) {
  const Depth depth(*this);
  context_.meter.step();
  line_ = expression.line;
  return std::visit([this](const auto& node) { return value_of(node); }, expression.node);
}

std::vector<Value> Renderer::values_of(const std::vector<ExpressionPtr>& expressions) {
  std::vector<Value> values;
  values.reserve(expressions.size());
  for (const ExpressionPtr& expression : expressions) values.push_back(evaluate(*expression));
  return values;
}

CallArguments Renderer::arguments_of(const Arguments& arguments) {
  CallArguments made{.positional = values_of(arguments.positional), .keywords = {}};
  for (const auto& [name, value] : arguments.keywords) made.keywords.emplace_back(name, evaluate(*value));
  if (arguments.rest != nullptr) {
    const ListPtr rest = items_of(context_, evaluate(*arguments.rest));
    made.positional.insert(made.positional.end(), rest->items.begin(), rest->items.end());
  }
  if (arguments.keyword_rest == nullptr) return made;
  const Value rest = evaluate(*arguments.keyword_rest);
  if (rest.dict() == nullptr) fail("argument after ** must be a mapping, not ", type_name(rest));
  for (const auto& [name, value] : rest.dict()->items) {
    if (name.text() == nullptr) fail("keywords must be strings");
    made.keywords.emplace_back(name.text_ptr(), value);
  }
  return made;
}

Value Renderer::value_of(const Name& node) { return lookup(node.symbol); }

Value Renderer::attribute(const Value& object, const Text& name) {
  if (object.object() != nullptr && object.object()->kind == Object::Kind::kLoop)
    return loop_attribute(static_cast<Loop&>(*object.object()), name.bytes);
  return attribute_of(context_, object, name);
}

Value Renderer::value_of(const Attribute& node) { return attribute(evaluate(*node.object), *node.name); }

Value Renderer::value_of(const Item& node) {
  const Value object = evaluate(*node.object);
  return item_of(context_, object, evaluate(*node.key));
}

Value Renderer::value_of(const Slice& node) {
  const Value object = evaluate(*node.object);
  const auto bound = [this](const ExpressionPtr& expression) {
    return expression == nullptr ? Value() : evaluate(*expression);
  };
  const Value begin = bound(node.begin), end = bound(node.end), step = bound(node.step);
  return slice_of(context_, object, {begin, end, step});
}

Value Renderer::value_of(const Call& node) {
  const auto* named = std::get_if<Attribute>(&node.callee->node);
  if (named == nullptr) {
    const Value callee = evaluate(*node.callee);
    return call(callee, arguments_of(*node.arguments));
  }
  const Value object = evaluate(*named->object);
  if (has_method(object, named->name->bytes))  // without a value for the method
    return call_method(*this, object, named->name->bytes, arguments_of(*node.arguments));
  const Value callee = attribute(object, *named->name);
  return call(callee, arguments_of(*node.arguments));
}

Value Renderer::apply(const Filter& filter, Value input) {
  const CallArguments arguments = arguments_of(*filter.arguments);
  return filtered(filter.name, input, arguments);
}

// Filters of a block: the innermost has no input.
Value Renderer::apply_all(const Expression& filter, const Value& input) {
  const auto& node = std::get<Filter>(filter.node);
  return apply(node, node.input == nullptr ? input : apply_all(*node.input, input));
}

Value Renderer::value_of(const Filter& node) { return apply(node, evaluate(*node.input)); }

Value Renderer::value_of(const Test& node) {
  const Value input = evaluate(*node.input);
  const CallArguments arguments = arguments_of(*node.arguments);
  return tested(node.name, input, arguments);
}

Value Renderer::value_of(const ListDisplay& node) { return context_.list(values_of(node.items), node.kind); }

Value Renderer::value_of(const DictDisplay& node) {
  std::vector<std::pair<Value, Value>> items;
  items.reserve(node.items.size());
  for (const auto& [key, value] : node.items) {
    Value name = evaluate(*key);
    items.emplace_back(std::move(name), evaluate(*value));
  }
  return context_.dict(std::move(items));
}

Value Renderer::value_of(const Unary& node) {
  const Value operand = evaluate(*node.operand);
  return node.op == Operator::kNot ? Value(!is_true(operand)) : signed_value(node.op, operand);
}

Value Renderer::value_of(const Binary& node) {
  const Value left = evaluate(*node.left);
  if (node.op == Operator::kAnd) return is_true(left) ? evaluate(*node.right) : left;
  if (node.op == Operator::kOr) return is_true(left) ? left : evaluate(*node.right);
  return arithmetic(context_, node.op, left, evaluate(*node.right));
}

Value Renderer::value_of(const Comparison& node) {
  Value left = evaluate(*node.first);
  for (const auto& [op, operand] : node.others) {
    Value right = evaluate(*operand);
    if (!compare(context_, op, left, right)) return false;
    left = std::move(right);
  }
  return true;
}

Value Renderer::value_of(const Concatenation& node) {
  TextBuilder builder(&context_.meter);
  for (const ExpressionPtr& item : node.items) append_str(context_, evaluate(*item), builder);
  return builder.finish();
}

Value Renderer::value_of(const Conditional& node) {
  if (is_true(evaluate(*node.condition))) return evaluate(*node.then);
  if (node.otherwise != nullptr) return evaluate(*node.otherwise);
  return context_.undefined(
      Undefined::Of::kHint, "",
      str("the inline if-expression on line ", line_, " evaluated to false and no else section was defined."));
}

}  // namespace headrace::jinja
