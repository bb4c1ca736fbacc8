#include "headrace/chat/jinja_access.h"

#include <algorithm>
#include <array>

#include "headrace/chat/jinja_arguments.h"

namespace headrace::jinja {
namespace {

using Names = std::initializer_list<std::string_view>;

bool is_among(std::string_view name, Names names) { return std::ranges::find(names, name) != names.end(); }

// Methods that change their object: a template may not call them.
bool changes_object(const Value& object, std::string_view name) {
  if (object.dict() != nullptr) return is_among(name, {"clear", "pop", "popitem", "setdefault", "update"});
  return object.list() != nullptr && object.list()->kind == List::Kind::kList &&
         is_among(name, {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"});
}

bool is_object_of(const Value& value, Object::Kind kind) {
  return value.object() != nullptr && value.object()->kind == kind;
}

std::optional<Value> object_attribute(const Context& context, const Value& object, std::string_view name) {
  if (is_object_of(object, Object::Kind::kNamespace)) {
    for (const auto& [known, value] : static_cast<const Namespace*>(object.object())->attributes) {
      context.meter.step();
      if (known->bytes == name) return value;
    }
  }
  if (is_object_of(object, Object::Kind::kMacro) && name == "name")
    return context.text(static_cast<const Macro*>(object.object())->definition.name);
  if (is_object_of(object, Object::Kind::kCycler) && name == "current") {
    const auto& cycler = *static_cast<const Cycler*>(object.object());
    return cycler.items[cycler.at];
  }
  if (const List* list = object.list(); list != nullptr && list->is_group && (name == "grouper" || name == "list"))
    return list->items[name == "grouper" ? 0 : 1];
  return std::nullopt;
}

// The result of Python's getattr().
std::optional<Value> python_attribute(const Context& context, const Value& object, std::string_view name) {
  if (auto value = object_attribute(context, object, name)) return value;
  if (has_method(object, name)) return ObjectPtr(std::make_shared<Method>(object, std::string(name)));
  if (changes_object(object, name) || (name.starts_with("__") && name.ends_with("__"))) {
    const std::string hint =
        str("access to attribute ", repr_of(name), " of ", repr_of(type_name(object)), " object is unsafe.");
    if (name.starts_with("__")) fail(hint);
    return context.undefined(Undefined::Of::kHint, "", hint);
  }
  return std::nullopt;
}

// The element `index` of a sequence of `size`, counted from its end if negative.
std::optional<int64_t> place_of(int64_t index, int64_t size) {
  const int64_t place = index < 0 ? index + size : index;
  return place >= 0 && place < size ? std::optional(place) : std::nullopt;
}

// The result of Python's object[key].
std::optional<Value> python_item(const Context& context, const Value& object, const Value& key) {
  if (const Dict* dict = object.dict()) {
    if (key.list() != nullptr || key.dict() != nullptr) return std::nullopt;
    const Value* value = find(context, *dict, key);
    return value == nullptr ? std::nullopt : std::optional(*value);
  }
  if (!key.is_integer()) return std::nullopt;
  if (const Text* text = object.text()) {
    context.meter.scan(text->is_ascii ? 0 : text->bytes.size());
    const auto place = place_of(key.integer(), static_cast<int64_t>(num_code_points(*text)));
    if (!place) return std::nullopt;
    const size_t begin = offset_of(*text, static_cast<size_t>(*place));
    return context.part(*text, begin, text->is_ascii ? begin + 1 : offset_of(*text, static_cast<size_t>(*place) + 1));
  }
  if (const List* list = object.list()) {
    const auto place = place_of(key.integer(), static_cast<int64_t>(list->items.size()));
    return place ? std::optional(list->items[static_cast<size_t>(*place)]) : std::nullopt;
  }
  if (!is_object_of(object, Object::Kind::kRange)) return std::nullopt;
  const auto& range = *static_cast<const Range*>(object.object());
  const auto place = place_of(key.integer(), range.size());
  return place ? std::optional<Value>(range.item(*place)) : std::nullopt;
}

int64_t bound_of(const Value& bound, int64_t otherwise) {
  if (bound.is_none()) return otherwise;
  if (bound.is_undefined()) fail(bound.undefined().message());
  if (!bound.is_integer()) fail("slice indices must be integers or None or have an __index__ method");
  return bound.integer();
}

struct Places {
  int64_t begin, end, step;
};

// As Python's slice.indices().
Places places_of(const SliceBounds& bounds, int64_t size) {
  const int64_t step = bound_of(bounds.step, 1);
  if (step == 0) fail("slice step cannot be zero");
  const int64_t lowest = step > 0 ? 0 : -1, highest = step > 0 ? size : size - 1;
  const auto place = [&](const Value& bound, int64_t otherwise) {
    const int64_t index = bound_of(bound, otherwise);
    if (bound.is_none()) return index;
    return std::clamp(index < 0 ? std::max(index + size, lowest) : index, lowest, highest);
  };
  return {place(bounds.begin, step > 0 ? lowest : highest), place(bounds.end, step > 0 ? highest : lowest), step};
}

std::vector<int64_t> taken(const Places& places) {
  std::vector<int64_t> all;
  for (int64_t i = places.begin; places.step > 0 ? i < places.end : i > places.end;) {
    all.push_back(i);
    if (__builtin_add_overflow(i, places.step, &i)) break;
  }
  return all;
}

Value text_slice(const Context& context, const Text& text, const SliceBounds& bounds) {
  context.meter.scan(text.bytes.size());
  const Places places = places_of(bounds, static_cast<int64_t>(num_code_points(text)));
  const auto offset = [&text](int64_t index) { return offset_of(text, static_cast<size_t>(index)); };
  if (places.step == 1) {
    const int64_t end = std::max(places.begin, places.end);
    return context.part(text, offset(places.begin), offset(end));
  }
  const ListPtr characters = items_of(context, context.part(text, 0, text.bytes.size()));
  TextBuilder builder(&context.meter);
  for (const int64_t i : taken(places)) builder.append(*characters->items[static_cast<size_t>(i)].text());
  return builder.finish();
}

Value dict_get(Renderer& renderer, const Value& self, const CallArguments& arguments) {
  const Parameters given("get", arguments, {"key", "default"}, 1);
  const Value* value = find(renderer.context(), *self.dict(), *given[0]);
  return value != nullptr ? *value : given[1] != nullptr ? *given[1] : Value();
}

template <View::Of of>
Value dict_view(Renderer&, const Value& self, const CallArguments& arguments) {
  const Parameters none("view", arguments, {});
  return ObjectPtr(std::make_shared<View>(self.dict_ptr(), of));
}

Value copied(Renderer&, const Value& self, const CallArguments& arguments) {
  const Parameters none("copy", arguments, {});
  return self;  // nothing can change it
}

Value count_in_list(Renderer& renderer, const Value& self, const CallArguments& arguments) {
  const Parameters given("count", arguments, {"value"}, 1);
  return static_cast<int64_t>(std::ranges::count_if(
      self.list()->items, [&](const Value& item) { return equal(renderer.context(), item, *given[0]); }));
}

Value index_in_list(Renderer& renderer, const Value& self, const CallArguments& arguments) {
  const Parameters given("index", arguments, {"value"}, 1);
  const auto& items = self.list()->items;
  for (size_t i = 0; i < items.size(); ++i)
    if (equal(renderer.context(), items[i], *given[0])) return static_cast<int64_t>(i);
  fail("the value is not in the ", type_name(self));
}

Value loop_cycle(Renderer&, const Value& self, const CallArguments& arguments) {
  if (arguments.positional.empty()) fail("no items for cycling given");
  const auto place = static_cast<const Loop*>(self.object())->index0;
  return arguments.positional[static_cast<size_t>(place) % arguments.positional.size()];
}

Value loop_changed(Renderer& renderer, const Value& self, const CallArguments& arguments) {
  auto& loop = *static_cast<Loop*>(self.object());
  const Value now = renderer.context().tuple(arguments.positional);
  if (loop.changed && equal(renderer.context(), *loop.changed, now)) return false;
  if (loop.is_running) loop.changed = now;
  return true;
}

Value cycler_next(Renderer&, const Value& self, const CallArguments& arguments) {
  const Parameters none("next", arguments, {});
  auto& cycler = *static_cast<Cycler*>(self.object());
  const size_t at = cycler.at;
  cycler.at = (at + 1) % cycler.items.size();
  return cycler.items[at];
}

Value cycler_reset(Renderer&, const Value& self, const CallArguments& arguments) {
  const Parameters none("reset", arguments, {});
  static_cast<Cycler*>(self.object())->at = 0;
  return {};
}

using MethodTable = std::initializer_list<std::pair<std::string_view, TextMethod>>;

TextMethod method_in(MethodTable table, std::string_view name) {
  const auto* found = std::ranges::find(table, name, &std::pair<std::string_view, TextMethod>::first);
  return found == table.end() ? nullptr : found->second;
}

TextMethod method_of(const Value& object, std::string_view name) {
  if (object.text() != nullptr) return text_method(name);
  if (object.dict() != nullptr) {
    return method_in({{"get", dict_get},
                      {"items", dict_view<View::Of::kItems>},
                      {"keys", dict_view<View::Of::kKeys>},
                      {"values", dict_view<View::Of::kValues>},
                      {"copy", copied}},
                     name);
  }
  if (const List* list = object.list()) {
    if (name == "copy") return list->kind == List::Kind::kList ? copied : nullptr;
    return method_in({{"count", count_in_list}, {"index", index_in_list}}, name);
  }
  if (is_object_of(object, Object::Kind::kLoop))
    return method_in({{"cycle", loop_cycle}, {"changed", loop_changed}}, name);
  if (is_object_of(object, Object::Kind::kCycler))
    return method_in({{"next", cycler_next}, {"reset", cycler_reset}}, name);
  return nullptr;
}

}  // namespace

bool has_method(const Value& object, std::string_view name) { return method_of(object, name) != nullptr; }

Value call_method(Renderer& renderer, const Value& self, std::string_view name, const CallArguments& arguments) {
  renderer.context().meter.step();
  return method_of(self, name)(renderer, self, arguments);
}

Value attribute_of(const Context& context, const Value& object, const Text& name) {
  if (object.is_undefined()) fail(object.undefined().message());
  if (const Dict* dict = object.dict(); dict != nullptr && name.bytes.starts_with("__"))
    if (const Value* item = find(*dict, name.bytes)) return *item;
  if (const auto value = python_attribute(context, object, name.bytes)) return *value;
  if (const Dict* dict = object.dict()) {
    context.meter.step();
    if (const Value* item = find(*dict, name.bytes)) return *item;
  }
  return context.undefined(Undefined::Of::kAttribute, type_name(object), name.bytes);
}

Value item_of(const Context& context, const Value& object, const Value& key) {
  if (object.is_undefined()) fail(object.undefined().message());
  if (const auto item = python_item(context, object, key)) return *item;
  if (const Text* name = key.text()) {
    if (const auto value = python_attribute(context, object, name->bytes)) return *value;
    return context.undefined(Undefined::Of::kAttribute, type_name(object), name->bytes);
  }
  TextBuilder repr(&context.meter);
  append_repr(context, key, repr);
  return context.undefined(Undefined::Of::kElement, type_name(object), repr.finish()->bytes);
}

Value slice_of(const Context& context, const Value& object, const SliceBounds& bounds) {
  if (object.is_undefined()) fail(object.undefined().message());
  if (const Text* text = object.text()) return text_slice(context, *text, bounds);
  const bool is_range = is_object_of(object, Object::Kind::kRange);
  if (object.list() == nullptr && !is_range)
    return context.undefined(Undefined::Of::kElement, type_name(object), "of a slice");
  const ListPtr list = items_of(context, object);
  const auto indices = taken(places_of(bounds, static_cast<int64_t>(list->items.size())));
  context.meter.step(static_cast<int64_t>(indices.size()));
  std::vector<Value> items;
  items.reserve(indices.size());
  for (const int64_t i : indices) items.push_back(list->items[static_cast<size_t>(i)]);
  return context.list(std::move(items), list->kind);
}

}  // namespace headrace::jinja
