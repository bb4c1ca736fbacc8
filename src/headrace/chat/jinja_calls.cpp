// Loops, macros and calls of a Renderer.
#include <algorithm>

#include "headrace/chat/jinja_access.h"
#include "headrace/chat/jinja_scopes.h"
#include "headrace/core/scope_end.h"

namespace headrace::jinja {
namespace {

// The things that a loop keeps end with it: a template may have stored the loop in itself.
void end_loop(Loop& loop) {
  loop.is_running = false;
  loop.source = loop.before = loop.current = Value();
  loop.after.reset();
  loop.changed.reset();
}

std::optional<Value> take_keyword(CallArguments& arguments, std::string_view name) {
  const auto found =
      std::ranges::find_if(arguments.keywords, [&](const auto& one) { return one.first->bytes == name; });
  if (found == arguments.keywords.end()) return std::nullopt;
  std::optional<Value> value(std::move(found->second));
  arguments.keywords.erase(found);
  return value;
}

}  // namespace

Renderer::Flow Renderer::run_node(const For& node) {
  run_loop(node, evaluate(*node.items), 0);
  return Flow::kNext;
}

void Renderer::run_loop(const For& node, const Value& items, int32_t depth0) {
  const auto shared = std::make_shared<Loop>(node);
  Loop& loop = *shared;
  loop.held = HeldMemory(&context_.meter, sizeof(Loop) + 32);
  const ScopeEnd end([&loop] { end_loop(loop); });
  loop.source = items.text() != nullptr ? items : Value(items_of(context_, items));
  loop.is_filtered = node.condition != nullptr;
  loop.depth0 = depth0;
  loop.outer_begin = frame_begin_, loop.outer_end = bindings_.size();
  bool is_complete = false;  // an iteration ran to its end: break and continue count as none, as in Jinja
  while (const std::optional<Value> item = next_item(loop)) {
    const Flow flow = run_iteration(shared, loop, *item);
    if (flow == Flow::kBreak) break;
    is_complete |= flow == Flow::kNext;
  }
  if (is_complete) return;
  const Scope scope(*this);
  run(node.otherwise);
}

Renderer::Flow Renderer::run_iteration(const ObjectPtr& loop, Loop& state, const Value& item) {
  context_.meter.step();
  ++state.index0;
  state.before = std::exchange(state.current, item);
  const Scope scope(*this);
  assign(state.node.loop, loop);
  assign(state.node.target, item);
  return run(state.node.body);
}

std::optional<Value> Renderer::next_source_item(Loop& loop) const {
  if (const List* list = loop.source.list()) {
    if (loop.at == list->items.size()) return std::nullopt;
    return list->items[loop.at++];
  }
  const Text& text = *loop.source.text();
  if (loop.at == text.bytes.size()) return std::nullopt;
  const size_t begin = loop.at++;
  while (loop.at < text.bytes.size() && (static_cast<unsigned char>(text.bytes[loop.at]) & 0xC0) == 0x80) ++loop.at;
  return context_.part(text, begin, loop.at);
}

bool Renderer::passes(const For& node, const Value& item) {
  const Scope scope(*this);
  assign(node.target, item);
  return is_true(evaluate(*node.condition));
}

std::optional<Value> Renderer::next_item(Loop& loop) {
  if (loop.after) return std::exchange(loop.after, std::nullopt);
  while (true) {
    std::optional<Value> item = next_source_item(loop);
    if (!item || !loop.is_filtered || passes(loop.node, *item)) return item;
  }
}

int64_t Renderer::length_of_loop(Loop& loop) {
  if (loop.length) return *loop.length;
  if (!loop.is_filtered) return *(loop.length = length_of(loop.source));
  std::vector<Value> rest;
  while (std::optional<Value> item = next_item(loop)) rest.push_back(std::move(*item));
  loop.length = loop.index0 + 1 + static_cast<int64_t>(rest.size());
  loop.source = context_.list(std::move(rest));
  loop.at = 0;
  loop.is_filtered = false;
  return *loop.length;
}

Value Renderer::loop_attribute(Loop& loop, std::string_view name) {
  const auto peek = [&]() -> const std::optional<Value>& {
    return loop.after ? loop.after : loop.after = next_item(loop);
  };
  const auto absent = [this](std::string_view hint) { return context_.undefined(Undefined::Of::kHint, "", hint); };
  if (name == "index") return loop.index0 + 1;
  if (name == "index0") return loop.index0;
  if (name == "first") return loop.index0 == 0;
  if (name == "depth") return static_cast<int64_t>(loop.depth0) + 1;
  if (name == "depth0") return static_cast<int64_t>(loop.depth0);
  if (name == "previtem") return loop.index0 == 0 ? absent("there is no previous item") : loop.before;
  if (!loop.is_running) return absent("the loop has ended");
  if (name == "length") return length_of_loop(loop);
  if (name == "revindex") return length_of_loop(loop) - loop.index0;
  if (name == "revindex0") return length_of_loop(loop) - loop.index0 - 1;
  if (name == "last") return !peek().has_value();
  if (name == "nextitem") return peek() ? *loop.after : absent("there is no next item");
  return context_.undefined(Undefined::Of::kAttribute, "LoopContext", name);
}

Value Renderer::call_loop(Loop& loop, const CallArguments& arguments) {
  if (!loop.node.is_recursive) fail("The loop must have the 'recursive' marker to be called recursively.");
  if (!loop.is_running) fail("the loop has ended");
  if (arguments.positional.size() != 1 || !arguments.keywords.empty()) fail("loop() takes one argument");
  const Frame frame(*this, std::span(bindings_).subspan(loop.outer_begin, loop.outer_end - loop.outer_begin));
  Captured output(*this);
  run_loop(loop.node, arguments.positional[0], loop.depth0 + 1);
  return output.finish();
}

Value Renderer::make_macro(const MacroDefinition& definition) {
  Macro& macro = keep<Macro>(definition);
  const std::span<const Binding> around = std::span(bindings_).subspan(frame_begin_);
  macro.held = HeldMemory(&context_.meter, around.size() * sizeof(Binding));
  macro.captured.assign(around.begin(), around.end());
  return kept(macro);
}

Value Renderer::call_macro(const Macro& macro, const CallArguments& arguments) {
  const Frame frame(*this, macro.captured);
  bind(macro, arguments);
  Captured output(*this);
  run(macro.definition.body);
  return output.finish();
}

void Renderer::bind(const Macro& macro, CallArguments arguments) {
  const Signature& signature = macro.definition.signature;
  const size_t count = signature.parameters.size();
  std::vector<bool> given(count, true);
  for (size_t i = 0; i < count; ++i) {
    if (i < arguments.positional.size()) {
      assign(signature.parameters[i].first, arguments.positional[i]);
    } else if (const auto value = take_keyword(arguments, signature.names[i])) {
      assign(signature.parameters[i].first, *value);
    } else {
      given[i] = false;
    }
  }
  for (size_t i = 0; i < count; ++i) {
    if (given[i]) continue;
    const auto& [symbol, otherwise] = signature.parameters[i];
    assign(symbol, otherwise != nullptr
                       ? evaluate(*otherwise)
                       : context_.undefined(Undefined::Of::kHint, "",
                                            str("parameter ", repr_of(signature.names[i]), " was not provided")));
  }
  bind_others(macro, std::move(arguments));
}

// Binds caller, kwargs and varargs where the macro reads them; without them, further arguments are errors.
void Renderer::bind_others(const Macro& macro, CallArguments arguments) {
  const Signature& signature = macro.definition.signature;
  const std::string name = repr_of(macro.definition.name);
  const bool has_own_caller = std::ranges::find(signature.names, "caller") != signature.names.end();
  if (signature.takes_caller && !has_own_caller) {
    const auto caller = take_keyword(arguments, "caller");
    assign(signature.caller, caller ? *caller : context_.undefined(Undefined::Of::kHint, "", "No caller defined"));
  }
  if (signature.takes_kwargs) {
    std::vector<std::pair<Value, Value>> rest;
    for (const auto& [key, value] : arguments.keywords) rest.emplace_back(key, value);
    assign(signature.kwargs, context_.dict(std::move(rest)));
  } else if (!arguments.keywords.empty()) {
    fail("macro ", name, " takes no keyword argument ", repr_of(arguments.keywords[0].first->bytes));
  }
  const size_t count = signature.parameters.size();
  if (signature.takes_varargs) {
    std::vector<Value> rest(
        arguments.positional.begin() + static_cast<std::ptrdiff_t>(std::min(count, arguments.positional.size())),
        arguments.positional.end());
    assign(signature.varargs, context_.tuple(std::move(rest)));
  } else if (arguments.positional.size() > count) {
    fail("macro ", name, " takes not more than ", count, " argument(s)");
  }
}

Value Renderer::call(const Value& callee, const CallArguments& arguments) {
  context_.meter.step();
  if (callee.is_undefined()) fail(callee.undefined().message());
  Object* object = callee.object();
  if (object == nullptr) fail("'", type_name(callee), "' object is not callable");
  switch (object->kind) {
    case Object::Kind::kFunction: return static_cast<Function*>(object)->body(*this, arguments);
    case Object::Kind::kMacro: return call_macro(*static_cast<Macro*>(object), arguments);
    case Object::Kind::kLoop: return call_loop(*static_cast<Loop*>(object), arguments);
    case Object::Kind::kMethod: {
      const auto& method = *static_cast<Method*>(object);
      return call_method(*this, method.self, method.name, arguments);
    }
    case Object::Kind::kJoiner: {
      auto& joiner = *static_cast<Joiner*>(object);
      return std::exchange(joiner.is_used, true) ? joiner.separator : Value(constant_text(""));
    }
    default: fail("'", type_name(callee), "' object is not callable");
  }
}

}  // namespace headrace::jinja
