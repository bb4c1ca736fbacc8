// Attributes, items, slices and methods of values, as ImmutableSandboxedEnvironment gives them.
#pragma once
#include <string_view>

#include "headrace/chat/jinja_renderer.h"

namespace headrace::jinja {

// object.name: a method, an attribute, or an item of that name; undefined if there is none. Error: an attribute of an
// undefined value, or one that begins with "__".
Value attribute_of(const Context& context, const Value& object, const Text& name);
// object[key]: an item, or an attribute or method of that name; undefined if there is none.
Value item_of(const Context& context, const Value& object, const Value& key);

struct SliceBounds {
  const Value &begin, &end, &step;  // None where absent
};
Value slice_of(const Context& context, const Value& object, const SliceBounds& bounds);

// Methods of texts, numbers and containers.
bool has_method(const Value& object, std::string_view name);
Value call_method(Renderer& renderer, const Value& self, std::string_view name, const CallArguments& arguments);

// Methods of texts, by name; null if there is none.
using TextMethod = Value (*)(Renderer&, const Value& self, const CallArguments&);
TextMethod text_method(std::string_view name);

}  // namespace headrace::jinja
