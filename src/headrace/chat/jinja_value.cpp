#include "headrace/chat/jinja_value.h"

#include <algorithm>
#include <cmath>

namespace headrace::jinja {
namespace {

constexpr size_t kIndexedDict = 16;  // a dict of more items has an index

void check_depth(int32_t depth, int32_t most) {
  if (depth > most) fail("its values nest more than ", most, " deep");
}

bool is_hashable(const Value& value) {
  if (value.dict() != nullptr) return false;
  const List* list = value.list();
  return list == nullptr || (list->kind == List::Kind::kTuple && std::ranges::all_of(list->items, is_hashable));
}

void index_texts(Dict& dict, RenderMeter& meter) {
  if (dict.items.size() <= kIndexedDict || !dict.text_places.empty()) return;
  dict.held = HeldMemory(&meter, dict.held.bytes() + dict.items.size() * 64);
  for (uint32_t i = 0; i < dict.items.size(); ++i)
    if (const Text* text = dict.items[i].first.text()) dict.text_places.emplace(text->bytes, i);
}

Value* find_mutable(const Context& context, Dict& dict, const Value& key) {
  return const_cast<Value*>(find(context, std::as_const(dict), key));  // NOLINT: the dict is not const
}

bool equal_items(const Context& context, const List& a, const List& b) {
  if (a.kind != b.kind || a.items.size() != b.items.size()) return false;
  for (size_t i = 0; i < a.items.size(); ++i)
    if (!equal(context, a.items[i], b.items[i])) return false;
  return true;
}

bool equal_dicts(const Context& context, const Dict& a, const Dict& b) {
  if (a.items.size() != b.items.size()) return false;
  return std::ranges::all_of(a.items, [&](const auto& item) {
    const Value* other = find(context, b, item.first);
    return other != nullptr && equal(context, item.second, *other);
  });
}

std::partial_ordering order_of_items(const Context& context, const List& a, const List& b, std::string_view sign) {
  const size_t common = std::min(a.items.size(), b.items.size());
  for (size_t i = 0; i < common; ++i)
    if (!equal(context, a.items[i], b.items[i])) return order_of(context, a.items[i], b.items[i], sign);
  return a.items.size() <=> b.items.size();
}

}  // namespace

std::string Undefined::message() const {
  switch (of) {
    case Of::kName: return str(repr_of(name), " is undefined");
    case Of::kAttribute: return str(repr_of(described_type(type)), " has no attribute ", repr_of(name));
    case Of::kElement: return str(described_type(type), " has no element ", name);
    case Of::kHint: return name;
  }
  return name;
}

int64_t Range::size() const {
  const auto first = static_cast<uint64_t>(start), last = static_cast<uint64_t>(stop), by = static_cast<uint64_t>(step);
  if (step > 0) return start < stop ? static_cast<int64_t>((last - first - 1) / by + 1) : 0;
  return start > stop ? static_cast<int64_t>((first - last - 1) / (0 - by) + 1) : 0;
}

bool Range::is_too_large(int64_t most) const {
  const auto span = static_cast<long double>(stop) - static_cast<long double>(start);
  return span / static_cast<long double>(step) > static_cast<long double>(most);
}

TextPtr Context::text(std::string_view bytes, Origin origin) const {
  TextBuilder builder(&meter);
  builder.append(bytes, origin);
  return builder.finish();
}

TextPtr Context::part(const Text& text, size_t begin, size_t end) const {
  TextBuilder builder(&meter);
  builder.append(TextPart{&text, begin, std::max(begin, end)});
  return builder.finish();
}

Value Context::list(std::vector<Value> items, List::Kind kind) const {
  auto made = std::make_shared<List>();
  made->held = HeldMemory(&meter, sizeof(List) + 32 + items.size() * sizeof(Value));
  made->kind = kind;
  for (const Value& item : items) made->depth = std::max(made->depth, depth_of(item) + 1);
  check_depth(made->depth, max_depth);
  made->items = std::move(items);
  return ListPtr(std::move(made));
}

Value Context::iterator(std::vector<Value> items) const {
  return ObjectPtr(std::make_shared<Iterator>(list(std::move(items)).list_ptr()));
}

Value Context::dict(std::vector<std::pair<Value, Value>> items) const {
  auto made = std::make_shared<Dict>();
  made->held = HeldMemory(&meter, sizeof(Dict) + 32 + items.size() * 2 * sizeof(Value));
  made->items.reserve(items.size());
  for (std::pair<Value, Value>& item : items) {
    if (Value* known = find_mutable(*this, *made, item.first)) {
      *known = std::move(item.second);
    } else {
      made->items.push_back(std::move(item));
      if (made->items.size() == kIndexedDict + 1) {
        index_texts(*made, meter);
      } else if (const Text* text = made->items.back().first.text(); text != nullptr && !made->text_places.empty()) {
        made->text_places.emplace(text->bytes, made->items.size() - 1);
      }
    }
  }
  for (const auto& [key, value] : made->items)
    made->depth = std::max({made->depth, depth_of(key) + 1, depth_of(value) + 1});
  check_depth(made->depth, max_depth);
  return DictPtr(std::move(made));
}

Value Context::undefined(Undefined::Of of, std::string_view type, std::string_view name) const {
  return UndefinedPtr(std::make_shared<Undefined>(Undefined{.of = of, .type = type, .name = std::string(name)}));
}

int32_t depth_of(const Value& value) {
  if (const List* list = value.list()) return list->depth;
  if (const Dict* dict = value.dict()) return dict->depth;
  const Object* object = value.object();
  if (object == nullptr) return 0;
  switch (object->kind) {
    case Object::Kind::kIterator: return static_cast<const Iterator*>(object)->list->depth + 1;
    case Object::Kind::kView: return static_cast<const View*>(object)->dict->depth + 1;
    case Object::Kind::kMethod: return depth_of(static_cast<const Method*>(object)->self) + 1;
    default: return 1;  // the rendering owns what these refer to
  }
}

std::string_view type_name(const Value& value) {
  if (value.is_none()) return "NoneType";
  if (value.is_undefined()) return "Undefined";
  if (value.is_bool()) return "bool";
  if (value.is_integer()) return "int";
  if (value.is_float()) return "float";
  if (value.text() != nullptr) return "str";
  if (value.dict() != nullptr) return "dict";
  if (const List* list = value.list()) return list->kind == List::Kind::kList ? "list" : "tuple";
  switch (value.object()->kind) {
    case Object::Kind::kNamespace: return "Namespace";
    case Object::Kind::kMacro: return "Macro";
    case Object::Kind::kLoop: return "LoopContext";
    case Object::Kind::kIterator: return "generator";
    case Object::Kind::kRange: return "range";
    case Object::Kind::kFunction: return "function";
    case Object::Kind::kMethod: return "builtin_function_or_method";
    case Object::Kind::kCycler: return "Cycler";
    case Object::Kind::kJoiner: return "Joiner";
    case Object::Kind::kView: break;
  }
  switch (static_cast<const View*>(value.object())->of) {
    case View::Of::kKeys: return "dict_keys";
    case View::Of::kValues: return "dict_values";
    case View::Of::kItems: return "dict_items";
  }
  return "object";
}

std::string described_type(std::string_view type) {
  if (type == "NoneType") return "None";
  for (const std::string_view name : {"Namespace", "Cycler", "Joiner"})
    if (type == name) return str("jinja2.utils.", type, " object");
  for (const std::string_view name : {"Macro", "LoopContext", "Undefined"})
    if (type == name) return str("jinja2.runtime.", type, " object");
  return str(type, " object");
}

bool is_true(const Value& value) {
  if (value.is_none() || value.is_undefined()) return false;
  if (value.is_number()) return value.number() != 0;
  if (const auto length = length_of(value)) return *length != 0;
  return true;
}

const Value* find(const Dict& dict, std::string_view key) {
  if (!dict.text_places.empty()) {
    const auto place = dict.text_places.find(key);
    return place == dict.text_places.end() ? nullptr : &dict.items[place->second].second;
  }
  for (const auto& [name, value] : dict.items) {
    const Text* text = name.text();
    if (text != nullptr && text->bytes == key) return &value;
  }
  return nullptr;
}

const Value* find(const Context& context, const Dict& dict, const Value& key) {
  if (!is_hashable(key)) fail("unhashable type: '", type_name(key), "'");
  if (const Text* text = key.text()) {
    context.meter.step();
    return find(dict, text->bytes);
  }
  context.meter.step(static_cast<int64_t>(dict.items.size()));
  for (const auto& [name, value] : dict.items)
    if (name.text() == nullptr && equal(context, name, key)) return &value;
  return nullptr;
}

bool equal(const Context& context, const Value& a, const Value& b) {
  context.meter.step();
  if (a.is_number() && b.is_number()) {
    if (a.is_integer() && b.is_integer()) return a.integer() == b.integer();
    return a.number() == b.number();
  }
  if (a.text() != nullptr && b.text() != nullptr) {
    if (a.text()->bytes.size() != b.text()->bytes.size()) return false;
    context.meter.scan(a.text()->bytes.size());
    return a.text()->bytes == b.text()->bytes;
  }
  if (a.is_none() || b.is_none()) return a.is_none() && b.is_none();
  if (a.is_undefined() || b.is_undefined()) return a.is_undefined() && b.is_undefined();
  if (a.list() != nullptr && b.list() != nullptr) return equal_items(context, *a.list(), *b.list());
  if (a.dict() != nullptr && b.dict() != nullptr) return equal_dicts(context, *a.dict(), *b.dict());
  return a.object() != nullptr && a.object() == b.object();
}

std::partial_ordering order_of(const Context& context, const Value& a, const Value& b, std::string_view sign) {
  context.meter.step();
  if (a.is_number() && b.is_number()) {
    if (a.is_integer() && b.is_integer()) return a.integer() <=> b.integer();
    return a.number() <=> b.number();
  }
  if (a.text() != nullptr && b.text() != nullptr) {
    context.meter.scan(std::min(a.text()->bytes.size(), b.text()->bytes.size()));
    return a.text()->bytes <=> b.text()->bytes;
  }
  for (const Value* value : {&a, &b})
    if (value->is_undefined()) fail(value->undefined().message());
  if (a.list() != nullptr && b.list() != nullptr && a.list()->kind == b.list()->kind)
    return order_of_items(context, *a.list(), *b.list(), sign);
  fail("'", sign, "' not supported between instances of '", type_name(a), "' and '", type_name(b), "'");
}

bool contains(const Context& context, const Value& container, const Value& item) {
  if (const Text* text = container.text()) {
    const Text* part = item.text();
    if (part == nullptr) fail("'in <string>' requires string as left operand, not ", type_name(item));
    context.meter.scan(text->bytes.size());
    return find_in(text->bytes, part->bytes) != std::string_view::npos;
  }
  if (const Dict* dict = container.dict()) return find(context, *dict, item) != nullptr;
  const auto is_item = [&](const Value& other) { return equal(context, item, other); };
  if (const List* list = container.list()) return std::ranges::any_of(list->items, is_item);
  if (!is_iterable(container)) fail("argument of type '", type_name(container), "' is not iterable");
  return std::ranges::any_of(items_of(context, container)->items, is_item);
}

std::optional<int64_t> length_of(const Value& value) {
  if (const Text* text = value.text()) return static_cast<int64_t>(num_code_points(*text));
  if (const List* list = value.list()) return static_cast<int64_t>(list->items.size());
  if (const Dict* dict = value.dict()) return static_cast<int64_t>(dict->items.size());
  if (value.is_undefined()) return 0;
  const Object* object = value.object();
  if (object == nullptr) return std::nullopt;
  if (object->kind == Object::Kind::kView)
    return static_cast<int64_t>(static_cast<const View*>(object)->dict->items.size());
  if (object->kind == Object::Kind::kRange) return static_cast<const Range*>(object)->size();
  return std::nullopt;
}

bool is_iterable(const Value& value) {
  if (value.is_undefined() || value.text() != nullptr || value.list() != nullptr || value.dict() != nullptr)
    return true;
  const Object* object = value.object();
  return object != nullptr && (object->kind == Object::Kind::kIterator || object->kind == Object::Kind::kView ||
                               object->kind == Object::Kind::kRange);
}

namespace {

std::vector<Value> characters(const Context& context, const Text& text) {
  std::vector<Value> items;
  const HeldMemory held(&context.meter, num_code_points(text) * sizeof(Value));
  items.reserve(num_code_points(text));
  for (size_t at = 0; at < text.bytes.size();) {
    size_t end = at + 1;
    while (end < text.bytes.size() && (static_cast<unsigned char>(text.bytes[end]) & 0xC0) == 0x80) ++end;
    items.emplace_back(context.part(text, at, end));
    at = end;
  }
  return items;
}

std::vector<Value> view_items(const Context& context, const View& view) {
  std::vector<Value> items;
  for (const auto& [key, value] : view.dict->items) {
    context.meter.step();
    items.push_back(view.of == View::Of::kKeys     ? key
                    : view.of == View::Of::kValues ? value
                                                   : context.tuple({key, value}));
  }
  return items;
}

std::vector<Value> range_items(const Context& context, const Range& range) {
  const HeldMemory held(&context.meter, static_cast<size_t>(range.size()) * sizeof(Value));
  std::vector<Value> items;
  for (int64_t i = 0; i < range.size(); ++i) items.emplace_back(range.item(i));
  context.meter.step(range.size());
  return items;
}

std::vector<Value> remaining(Iterator& iterator) {
  const auto& items = iterator.list->items;
  std::vector<Value> rest(items.begin() + static_cast<std::ptrdiff_t>(iterator.next), items.end());
  iterator.next = items.size();
  return rest;
}

}  // namespace

ListPtr items_of(const Context& context, const Value& value) {
  if (value.list() != nullptr) return value.list_ptr();
  if (value.is_undefined()) return context.list({}).list_ptr();
  if (const Text* text = value.text()) return context.list(characters(context, *text)).list_ptr();
  if (value.dict() != nullptr)
    return context.list(view_items(context, View(value.dict_ptr(), View::Of::kKeys))).list_ptr();
  if (!is_iterable(value)) fail("'", type_name(value), "' object is not iterable");
  Object* object = value.object();
  switch (object->kind) {
    case Object::Kind::kView: return context.list(view_items(context, *static_cast<View*>(object))).list_ptr();
    case Object::Kind::kRange: return context.list(range_items(context, *static_cast<Range*>(object))).list_ptr();
    default: return context.list(remaining(*static_cast<Iterator*>(object))).list_ptr();
  }
}

}  // namespace headrace::jinja
