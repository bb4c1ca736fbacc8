// Filters of sequences and mappings.
#include <algorithm>
#include <charconv>
#include <iterator>

#include "headrace/chat/jinja_access.h"
#include "headrace/chat/jinja_arguments.h"
#include "headrace/chat/jinja_filters.h"
#include "headrace/chat/jinja_operators.h"
#include "headrace/chat/jinja_parser.h"
#include "headrace/chat/jinja_text.h"
#include "headrace/chat/text_case.h"

namespace headrace::jinja {
namespace {

// item.a.b of an attribute "a.b"; the item itself without one.
class AttributePath {
 public:
  AttributePath(const Context& context, const Value* path) : context_(context) {
    if (path == nullptr || path->is_none()) return;
    if (path->text() == nullptr) {
      steps_.push_back(*path);
      return;
    }
    for (const Value& step : split(context, *path->text(), *constant_text("."), -1, From::kLeft)) {
      const std::string& name = step.text()->bytes;
      int64_t index = 0;
      const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), index);
      const bool is_index = error == std::errc() && end == name.data() + name.size() && name[0] != '-';
      steps_.push_back(is_index ? Value(index) : step);
    }
  }

  // `otherwise` stands for undefined values on the way; null: they stay.
  Value of(Value item, const Value* otherwise = nullptr) const {
    for (const Value& step : steps_) {
      item = item_of(context_, item, step);
      if (otherwise != nullptr && !otherwise->is_none() && item.is_undefined()) item = *otherwise;
    }
    return item;
  }

 private:
  const Context& context_;
  std::vector<Value> steps_;
};

// The key by which values are sorted and compared: texts in lower case unless case counts.
Value comparable(const Context& context, const Value& value, bool case_sensitive) {
  return case_sensitive || value.text() == nullptr ? value : Value(mapped(context, *value.text(), append_lower));
}

Value length(Renderer&, const Value& input, const CallArguments& arguments) {
  const Parameters none("len", arguments, {});
  const auto size = length_of(input);
  if (!size) fail("object of type '", type_name(input), "' has no len()");
  return *size;
}

Value first(Renderer& renderer, const Value& input, const CallArguments& arguments) {
  const Parameters none("first", arguments, {});
  const Context& context = renderer.context();
  if (const Text* text = input.text(); text != nullptr && !text->bytes.empty())
    return item_of(context, input, int64_t{0});
  if (input.object() != nullptr && input.object()->kind == Object::Kind::kIterator) {
    auto& iterator = static_cast<Iterator&>(*input.object());
    if (iterator.next < iterator.list->items.size()) return iterator.list->items[iterator.next++];
  }
  const ListPtr items = items_of(context, input);
  if (!items->items.empty()) return items->items.front();
  return context.undefined(Undefined::Of::kHint, "", "No first item, sequence was empty.");
}

Value last(Renderer& renderer, const Value& input, const CallArguments& arguments) {
  const Parameters none("last", arguments, {});
  const Context& context = renderer.context();
  if (!length_of(input)) fail("'", type_name(input), "' object is not reversible");
  if (input.text() != nullptr && !input.text()->bytes.empty()) return item_of(context, input, int64_t{-1});
  const ListPtr items = items_of(context, input);
  if (!items->items.empty()) return items->items.back();
  return context.undefined(Undefined::Of::kHint, "", "No last item, sequence was empty.");
}

Value list(Renderer& renderer, const Value& input, const CallArguments& arguments) {
  const Parameters none("list", arguments, {});
  const ListPtr items = items_of(renderer.context(), input);
  return items->kind == List::Kind::kList ? Value(items) : renderer.context().list(items->items);
}

Value items(Renderer& renderer, const Value& input, const CallArguments& arguments) {
  const Parameters none("items", arguments, {});
  const Context& context = renderer.context();
  if (input.is_undefined()) return context.iterator({});
  if (input.dict() == nullptr) fail("Can only get item pairs from a mapping.");
  const Value view = ObjectPtr(std::make_shared<View>(input.dict_ptr(), View::Of::kItems));
  return context.iterator(items_of(context, view)->items);
}

Value reverse(Renderer& renderer, const Value& input, const CallArguments& arguments) {
  const Parameters none("reverse", arguments, {});
  const Context& context = renderer.context();
  if (const Text* text = input.text()) return reversed(context, *text);
  if (!is_iterable(input)) fail("argument must be iterable");
  const ListPtr in_order = items_of(context, input);
  std::vector<Value> back(in_order->items.rbegin(), in_order->items.rend());
  const bool is_list = !length_of(input);  // of a generator
  return is_list ? context.list(std::move(back)) : context.iterator(std::move(back));
}

Value join(Renderer& renderer, const Value& input, const CallArguments& arguments) {
  const Parameters given("join", arguments, {"d", "attribute"});
  const Context& context = renderer.context();
  const TextPtr separator = given[0] == nullptr ? constant_text("") : to_text(context, *given[0]);
  const ListPtr all = items_of(context, input);
  if (!given.is_given(1)) return joined(context, *separator, all->items);
  const AttributePath path(context, given[1]);
  std::vector<Value> parts;
  for (const Value& item : all->items) parts.push_back(path.of(item));
  return joined(context, *separator, parts);
}

CallArguments without_first(const CallArguments& arguments, size_t count) {
  CallArguments rest = arguments;
  rest.positional.erase(rest.positional.begin(), rest.positional.begin() + static_cast<std::ptrdiff_t>(count));
  return rest;
}

std::string name_of(const Value& value, std::string_view what) {
  if (value.text() == nullptr) fail("No ", what, " named ", type_name(value), ".");
  return value.text()->bytes;
}

const Value* keyword(const CallArguments& arguments, std::string_view name) {
  for (const auto& [key, value] : arguments.keywords)
    if (key->bytes == name) return &value;
  return nullptr;
}

Value map(Renderer& renderer, const Value& input, const CallArguments& arguments) {
  const Context& context = renderer.context();
  std::vector<Value> mapped;
  if (!is_true(input)) return context.iterator({});
  const Value* attribute = arguments.positional.empty() ? keyword(arguments, "attribute") : nullptr;
  if (attribute == nullptr && arguments.positional.empty()) fail("map requires a filter argument");
  const AttributePath path(context, attribute);
  const CallArguments rest = attribute != nullptr ? CallArguments{} : without_first(arguments, 1);
  const std::string name = attribute != nullptr ? "" : name_of(arguments.positional[0], "filter");
  for (const Value& item : items_in(context, input)) {
    context.meter.step();
    mapped.push_back(attribute != nullptr ? path.of(item, keyword(arguments, "default"))
                                          : renderer.filtered(name, item, rest));
  }
  return context.iterator(std::move(mapped));
}

enum class By : uint8_t { kItem, kAttribute };

template <By by, bool wanted>
Value select(Renderer& renderer, const Value& input, const CallArguments& arguments) {
  const Context& context = renderer.context();
  const size_t first = by == By::kAttribute ? 1 : 0;
  if (!is_true(input)) return context.iterator({});
  if (arguments.positional.size() < first) fail("Missing parameter for attribute name");
  const AttributePath path(context, first == 1 ? &arguments.positional[0] : nullptr);
  const bool tests = arguments.positional.size() > first;
  const std::string name = tests ? name_of(arguments.positional[first], "test") : "";
  const CallArguments rest = tests ? without_first(arguments, first + 1) : CallArguments{};
  std::vector<Value> selected;
  for (const Value& item : items_in(context, input)) {
    context.meter.step();
    const Value value = path.of(item);
    if ((tests ? renderer.tested(name, value, rest) : is_true(value)) == wanted) selected.push_back(item);
  }
  return context.iterator(std::move(selected));
}

// Items and what they are sorted by.
using Keyed = std::vector<std::pair<Value, Value>>;

void sort_by_key(const Context& context, Keyed& keyed, bool descending) {
  const auto less = [&](const auto& a, const auto& b) { return order_of(context, a.first, b.first) < 0; };
  if (descending) std::ranges::reverse(keyed);  // and back: equal ones keep their order, as in sorted()
  std::ranges::stable_sort(keyed, less);
  if (descending) std::ranges::reverse(keyed);
}

Value values_of(const Context& context, const Keyed& keyed) {
  std::vector<Value> values;
  for (const auto& [key, value] : keyed) values.push_back(value);
  return context.list(std::move(values));
}

Value sort(Renderer& renderer, const Value& input, const CallArguments& arguments) {
  const Parameters given("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  const Context& context = renderer.context();
  std::vector<AttributePath> paths;
  if (given.is_given(2) && given[2]->text() != nullptr) {
    for (const Value& one : split(context, *given[2]->text(), *constant_text(","), -1, From::kLeft))
      paths.emplace_back(context, &one);
  } else {
    paths.emplace_back(context, given[2]);
  }
  Keyed keyed;
  for (const Value& item : items_in(context, input)) {
    std::vector<Value> keys;
    keys.reserve(paths.size());
    for (const AttributePath& path : paths) keys.push_back(comparable(context, path.of(item), given.flag(1, false)));
    keyed.emplace_back(context.list(std::move(keys)), item);
  }
  sort_by_key(context, keyed, given.flag(0, false));
  return values_of(context, keyed);
}

Value dictsort(Renderer& renderer, const Value& input, const CallArguments& arguments) {
  const Parameters given("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  const Context& context = renderer.context();
  if (input.is_undefined()) fail(input.undefined().message());
  if (input.dict() == nullptr) fail("'", type_name(input), "' object has no attribute 'items'");
  const std::string by = given[1] == nullptr ? "key" : to_text(context, *given[1])->bytes;
  if (by != "key" && by != "value") fail("You can only sort by either \"key\" or \"value\"");
  Keyed keyed;
  for (const auto& [key, value] : input.dict()->items)
    keyed.emplace_back(comparable(context, by == "key" ? key : value, given.flag(0, false)),
                       context.tuple({key, value}));
  sort_by_key(context, keyed, given.flag(2, false));
  return values_of(context, keyed);
}

Value unique(Renderer& renderer, const Value& input, const CallArguments& arguments) {
  const Parameters given("unique", arguments, {"case_sensitive", "attribute"});
  const Context& context = renderer.context();
  const AttributePath path(context, given[1]);
  std::vector<Value> seen, kept;
  for (const Value& item : items_in(context, input)) {
    Value key = comparable(context, path.of(item), given.flag(0, false));
    if (key.dict() != nullptr || (key.list() != nullptr && key.list()->kind == List::Kind::kList))
      fail("unhashable type: '", type_name(key), "'");
    if (std::ranges::any_of(seen, [&](const Value& other) { return equal(context, key, other); })) continue;
    seen.push_back(std::move(key));
    kept.push_back(item);
  }
  return context.iterator(std::move(kept));
}

template <bool largest>
Value extreme(Renderer& renderer, const Value& input, const CallArguments& arguments) {
  const Parameters given("min", arguments, {"case_sensitive", "attribute"});
  const Context& context = renderer.context();
  const AttributePath path(context, given[1]);
  const ListPtr all = items_of(context, input);
  if (all->items.empty()) return context.undefined(Undefined::Of::kHint, "", "No aggregated item, sequence was empty.");
  const auto key_of = [&](const Value& item) { return comparable(context, path.of(item), given.flag(0, false)); };
  Value best = all->items[0], best_key = key_of(best);
  for (size_t i = 1; i < all->items.size(); ++i) {
    Value key = key_of(all->items[i]);
    const bool better = largest ? order_of(context, key, best_key, ">") > 0 : order_of(context, key, best_key) < 0;
    if (better) best = all->items[i], best_key = std::move(key);
  }
  return best;
}

Value sum(Renderer& renderer, const Value& input, const CallArguments& arguments) {
  const Parameters given("sum", arguments, {"attribute", "start"});
  const Context& context = renderer.context();
  const AttributePath path(context, given[0]);
  Value total = given[1] == nullptr ? Value(int64_t{0}) : *given[1];
  if (total.text() != nullptr) fail("sum() can't sum strings [use ''.join(seq) instead]");
  for (const Value& item : items_in(context, input)) total = arithmetic(context, Operator::kAdd, total, path.of(item));
  return total;
}

Value batch(Renderer& renderer, const Value& input, const CallArguments& arguments) {
  const Parameters given("batch", arguments, {"linecount", "fill_with"}, 1);
  const Context& context = renderer.context();
  const auto size = given.integer(0, 1);
  std::vector<Value> batches, current;
  for (const Value& item : items_in(context, input)) {
    if (static_cast<int64_t>(current.size()) == size) batches.push_back(context.list(std::exchange(current, {})));
    current.push_back(item);
  }
  if (current.empty()) return context.iterator(std::move(batches));
  const int64_t more = given.is_given(1) ? std::max<int64_t>(size - static_cast<int64_t>(current.size()), 0) : 0;
  const HeldMemory held(&context.meter, static_cast<size_t>(std::min<int64_t>(more, INT32_MAX)) * sizeof(Value));
  if (more > 0) current.resize(static_cast<size_t>(size), *given[1]);
  batches.push_back(context.list(std::move(current)));
  return context.iterator(std::move(batches));
}

Value slices(Renderer& renderer, const Value& input, const CallArguments& arguments) {
  const Parameters given("slice", arguments, {"slices", "fill_with"}, 1);
  const Context& context = renderer.context();
  const ListPtr all = items_of(context, input);
  const int64_t count = given.integer(0, 1), size = static_cast<int64_t>(all->items.size());
  if (count == 0) fail("integer division or modulo by zero");
  std::vector<Value> made;
  auto begin = all->items.begin();
  for (int64_t i = 0; i < count; ++i) {
    const bool longer = i < size % count;
    const auto end = begin + size / count + (longer ? 1 : 0);
    std::vector<Value> slice(begin, end);
    if (given.is_given(1) && !longer) slice.push_back(*given[1]);
    made.push_back(context.list(std::move(slice)));
    begin = end;
  }
  return context.iterator(std::move(made));
}

Value group_of(const Context& context, const Value& key, std::vector<Value> items) {
  const Value pair = context.tuple({key, context.list(std::move(items))});
  auto group = std::make_shared<List>();
  group->kind = List::Kind::kTuple;
  group->is_group = true;
  group->depth = pair.list()->depth;
  group->items = pair.list()->items;
  group->held = HeldMemory(&context.meter, sizeof(List) + 2 * sizeof(Value));
  return ListPtr(std::move(group));
}

Value groupby(Renderer& renderer, const Value& input, const CallArguments& arguments) {
  const Parameters given("groupby", arguments, {"attribute", "default", "case_sensitive"}, 1);
  const Context& context = renderer.context();
  const AttributePath path(context, given[0]);
  Keyed keyed;
  for (const Value& item : items_in(context, input))
    keyed.emplace_back(comparable(context, path.of(item, given[1]), given.flag(2, false)), item);
  sort_by_key(context, keyed, false);
  std::vector<Value> groups;
  for (size_t i = 0; i < keyed.size();) {
    std::vector<Value> members;
    const size_t begin = i;
    for (; i < keyed.size() && equal(context, keyed[i].first, keyed[begin].first); ++i)
      members.push_back(keyed[i].second);
    const Value key = path.of(members.front(), given[1]);
    groups.push_back(group_of(context, key, std::move(members)));
    if (i == begin) ++i;  // a NaN equals nothing
  }
  return context.list(std::move(groups));
}

Value attribute(Renderer& renderer, const Value& input, const CallArguments& arguments) {
  const Parameters given("attr", arguments, {"name"}, 1);
  const Context& context = renderer.context();
  if (input.is_undefined()) fail(input.undefined().message());
  const TextPtr name = to_text(context, *given[0]);
  if (input.dict() != nullptr && !has_method(input, name->bytes))
    return context.undefined(Undefined::Of::kAttribute, type_name(input), name->bytes);
  return attribute_of(context, input, *name);
}

constexpr std::pair<std::string_view, FilterBody> kFilters[] = {{"attr", attribute},
                                                                {"batch", batch},
                                                                {"count", length},
                                                                {"dictsort", dictsort},
                                                                {"first", first},
                                                                {"groupby", groupby},
                                                                {"items", items},
                                                                {"join", join},
                                                                {"last", last},
                                                                {"length", length},
                                                                {"list", list},
                                                                {"map", map},
                                                                {"max", extreme<true>},
                                                                {"min", extreme<false>},
                                                                {"reject", select<By::kItem, false>},
                                                                {"rejectattr", select<By::kAttribute, false>},
                                                                {"reverse", reverse},
                                                                {"select", select<By::kItem, true>},
                                                                {"selectattr", select<By::kAttribute, true>},
                                                                {"slice", slices},
                                                                {"sort", sort},
                                                                {"sum", sum},
                                                                {"unique", unique}};

}  // namespace

FilterBody sequence_filter(std::string_view name) {
  const auto* found = std::ranges::find(kFilters, name, &std::pair<std::string_view, FilterBody>::first);
  return found == std::end(kFilters) ? nullptr : found->second;
}

bool is_filter(std::string_view name) { return text_filter(name) != nullptr || sequence_filter(name) != nullptr; }

Value Renderer::filtered(std::string_view name, const Value& input, const CallArguments& arguments) {
  context_.meter.step();
  const FilterBody text = text_filter(name), body = text != nullptr ? text : sequence_filter(name);
  if (body == nullptr) fail("No filter named ", repr_of(name), " found.");
  return body(*this, input, arguments);
}

}  // namespace headrace::jinja
