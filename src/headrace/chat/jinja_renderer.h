// Renders a parsed template.
#pragma once
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "headrace/chat/jinja_ast.h"
#include "headrace/chat/jinja_value.h"

namespace headrace::jinja {

// The arguments of a call, evaluated.
struct CallArguments {
  std::vector<Value> positional;
  std::vector<std::pair<TextPtr, Value>> keywords;
};

struct Binding {
  Symbol symbol;
  Value value;
};

struct Namespace : Object {
  Namespace() : Object(Kind::kNamespace) {}
  std::vector<std::pair<TextPtr, Value>> attributes;
};

struct Macro : Object {
  explicit Macro(const MacroDefinition& source) : Object(Kind::kMacro), definition(source) {}
  const MacroDefinition& definition;
  std::vector<Binding> captured;  // variables of the scopes around it
  HeldMemory held;
};

struct Loop : Object {
  explicit Loop(const For& source_node) : Object(Kind::kLoop), node(source_node) {}
  const For& node;
  Value source;   // a list or a text
  size_t at = 0;  // the next item, or its first byte
  int64_t index0 = -1;
  int32_t depth0 = 0;
  Value before, current;
  std::optional<Value> after;  // the next item, if it was asked for
  std::optional<int64_t> length;
  std::optional<Value> changed;
  bool is_filtered = false;  // items of `source` may be left out
  bool is_running = true;
  size_t outer_begin = 0, outer_end = 0;  // bindings of the scopes around it
  HeldMemory held;
};

struct Cycler : Object {
  explicit Cycler(std::vector<Value> values) : Object(Kind::kCycler), items(std::move(values)) {}
  std::vector<Value> items;
  size_t at = 0;
};

struct Joiner : Object {
  explicit Joiner(Value text) : Object(Kind::kJoiner), separator(std::move(text)) {}
  Value separator;
  bool is_used = false;
};

class Renderer;

struct Function : Object {
  using Body = Value (*)(Renderer&, const CallArguments&);
  explicit Function(Body function) : Object(Kind::kFunction), body(function) {}
  Body body;
};

struct RenderLimits {
  int64_t output_bytes;
  int32_t calls;  // of macros and recursive loops within one another
};

// Not thread-safe: renders once. The template outlives it.
class Renderer {
 public:
  // `variables`: by symbol; nullopt if there is none of that name.
  Renderer(const Template& source, const Context& context, RenderLimits limits,
           std::vector<std::optional<Value>> variables);

  // Error kInvalidArgument: what the template raises or cannot do, with its line.
  TextPtr run();

  const Context& context() const { return context_; }
  Value call(const Value& callee, const CallArguments& arguments);
  Value filtered(std::string_view name, const Value& input, const CallArguments& arguments);
  bool tested(std::string_view name, const Value& input, const CallArguments& arguments);
  // Keeps `object` until the rendering ends: it may refer to what refers to it.
  template <class T, class... Args>
  T& keep(Args&&... args) {
    memory_.emplace_back(&context_.meter, sizeof(T) + 64);
    objects_.push_back(std::make_unique<T>(std::forward<Args>(args)...));
    return static_cast<T&>(*objects_.back());
  }
  void set_attribute(Namespace& names, const TextPtr& name, Value value);
  Value loop_attribute(Loop& loop, std::string_view name);

 private:
  enum class Flow : uint8_t { kNext, kBreak, kContinue };
  class Scope;
  class Depth;
  class Captured;
  class Frame;

  Flow run(const Block& block);
  Flow run_node(const Data& node);
  Flow run_node(const Output& node);
  Flow run_node(const If& node);
  Flow run_node(const For& node);
  Flow run_node(const Set& node);
  Flow run_node(const SetBlock& node);
  Flow run_node(const std::unique_ptr<const MacroDefinition>& node);
  Flow run_node(const CallBlock& node);
  Flow run_node(const FilterBlock& node);
  Flow run_node(const With& node);
  Flow run_node(const Generation& node);
  Flow run_node(const Break& node);
  Flow run_node(const Continue& node);
  void emit(const Value& value);
  void check_output() const;

  void run_loop(const For& node, const Value& items, int32_t depth0);
  Flow run_iteration(const ObjectPtr& loop, Loop& state, const Value& item);
  std::optional<Value> next_item(Loop& loop);
  std::optional<Value> next_source_item(Loop& loop) const;
  bool passes(const For& node, const Value& item);
  int64_t length_of_loop(Loop& loop);
  TextPtr captured(const Block& block);

  Value make_macro(const MacroDefinition& definition);
  Value call_macro(const Macro& macro, const CallArguments& arguments);
  void bind(const Macro& macro, CallArguments arguments);
  void bind_others(const Macro& macro, CallArguments arguments);
  Value call_loop(Loop& loop, const CallArguments& arguments);

  Value attribute(const Value& object, const Text& name);
  Value evaluate(const Expression& expression);
  Value value_of(const Constant& node) const { return node.value; }
  Value value_of(const Name& node);
  Value value_of(const Attribute& node);
  Value value_of(const Item& node);
  Value value_of(const Slice& node);
  Value value_of(const Call& node);
  Value value_of(const Filter& node);
  Value value_of(const Test& node);
  Value value_of(const ListDisplay& node);
  Value value_of(const DictDisplay& node);
  Value value_of(const Unary& node);
  Value value_of(const Binary& node);
  Value value_of(const Comparison& node);
  Value value_of(const Concatenation& node);
  Value value_of(const Conditional& node);
  std::vector<Value> values_of(const std::vector<ExpressionPtr>& expressions);
  CallArguments arguments_of(const Arguments& arguments);
  Value apply(const Filter& filter, Value input);
  Value apply_all(const Expression& filter, const Value& input);

  Value lookup(Symbol symbol);
  void assign(Symbol symbol, Value value);
  void assign(const Target& target, const Value& value);

  const Template& template_;
  const Context& context_;
  RenderLimits limits_;
  std::vector<HeldMemory> memory_;  // of objects_
  std::vector<std::unique_ptr<Object>> objects_;
  std::vector<std::optional<Value>> variables_;  // of the outermost scope, by symbol
  std::vector<Binding> bindings_;                // of the scopes within it
  size_t scope_begin_ = 0;                       // bindings of the innermost scope
  size_t frame_begin_ = 0;                       // and of the macro that runs
  bool is_outermost_ = true;
  int32_t depth_ = 0, calls_ = 0;
  int32_t line_ = 1;
  TextBuilder* out_ = nullptr;
};

// A value for an object that a Renderer keeps.
inline Value kept(Object& object) { return ObjectPtr(std::shared_ptr<void>(), &object); }

// Functions that every template has, by name; null if there is none.
Function::Body global_function(std::string_view name);

}  // namespace headrace::jinja
