// Methods of str.
#include <algorithm>
#include <iterator>

#include "headrace/chat/jinja_access.h"
#include "headrace/chat/jinja_arguments.h"
#include "headrace/chat/jinja_text.h"
#include "headrace/chat/python_format.h"
#include "headrace/chat/text_case.h"

namespace headrace::jinja {
namespace {

constexpr size_t npos = std::string_view::npos;

template <Side side>
Value strip(Renderer& renderer, const Value& self, const CallArguments& arguments) {
  const Parameters given("strip", arguments, {"chars"});
  return stripped(renderer.context(), *self.text(), side, given.is_given(0) ? &given.text(0) : nullptr);
}

template <From from>
Value split_text(Renderer& renderer, const Value& self, const CallArguments& arguments) {
  const Parameters given("split", arguments, {"sep", "maxsplit"});
  const int64_t most = given.integer(1, -1);
  const Context& context = renderer.context();
  if (!given.is_given(0)) return context.list(split_at_space(context, *self.text(), most, from));
  return context.list(split(context, *self.text(), given.text(0), most, from));
}

Value split_lines(Renderer& renderer, const Value& self, const CallArguments& arguments) {
  const Parameters given("splitlines", arguments, {"keepends"});
  std::vector<Value> lines;
  const Context& context = renderer.context();
  for (const TextPart& line : lines_of(context, *self.text(), given.flag(0, false) ? LineEnds::kKeep : LineEnds::kDrop))
    lines.emplace_back(context.part(*self.text(), line.begin, line.end));
  return context.list(std::move(lines));
}

template <From from>
Value partition(Renderer& renderer, const Value& self, const CallArguments& arguments) {
  const Parameters given("partition", arguments, {"sep"}, 1);
  const Text &text = *self.text(), &separator = given.text(0);
  const Context& context = renderer.context();
  if (separator.bytes.empty()) fail("empty separator");
  context.meter.scan(text.bytes.size());
  const size_t cut = from == From::kLeft ? find_in(text.bytes, separator.bytes) : rfind_in(text.bytes, separator.bytes);
  const Value empty = context.text("");
  if (cut == npos)
    return context.tuple(from == From::kLeft ? std::vector{self, empty, empty} : std::vector{empty, empty, self});
  const size_t behind = cut + separator.bytes.size();
  return context.tuple(
      {context.part(text, 0, cut), context.part(text, cut, behind), context.part(text, behind, text.bytes.size())});
}

Value replace(Renderer& renderer, const Value& self, const CallArguments& arguments) {
  const Parameters given("replace", arguments, {"old", "new", "count"}, 2);
  return replaced(renderer.context(), *self.text(), given.text(0), given.text(1), given.integer(2, -1));
}

Value join(Renderer& renderer, const Value& self, const CallArguments& arguments) {
  const Parameters given("join", arguments, {"iterable"}, 1);
  if (!is_iterable(*given[0])) fail("can only join an iterable");
  const ListPtr items = items_of(renderer.context(), *given[0]);
  for (size_t i = 0; i < items->items.size(); ++i)
    if (items->items[i].text() == nullptr)
      fail("sequence item ", i, ": expected str instance, ", type_name(items->items[i]), " found");
  return joined(renderer.context(), *self.text(), items->items);
}

template <CaseMap map>
Value map_case(Renderer& renderer, const Value& self, const CallArguments& arguments) {
  const Parameters none("upper", arguments, {});
  return mapped(renderer.context(), *self.text(), map);
}

Value capitalize(Renderer& renderer, const Value& self, const CallArguments& arguments) {
  const Parameters none("capitalize", arguments, {});
  return capitalized(renderer.context(), *self.text());
}

Value title(Renderer& renderer, const Value& self, const CallArguments& arguments) {
  const Parameters none("title", arguments, {});
  return titled(renderer.context(), *self.text());
}

// The part of a text that find() and its like search, in bytes; nullopt if it begins behind the text's end.
std::optional<std::pair<size_t, size_t>> searched(const Text& text, const Parameters& given, size_t first) {
  const auto size = static_cast<int64_t>(num_code_points(text));
  const auto place = [&](size_t argument, int64_t otherwise) {
    const int64_t index = given.is_given(argument) ? given.integer(argument, 0) : otherwise;
    return index < 0 ? std::max<int64_t>(index + size, 0) : index;
  };
  const int64_t begin = place(first, 0), end = std::min(place(first + 1, size), size);
  if (begin > size || begin > end) return std::nullopt;
  return std::pair{offset_of(text, static_cast<size_t>(begin)), offset_of(text, static_cast<size_t>(end))};
}

template <From from>
int64_t found_in(Renderer& renderer, const Value& self, const CallArguments& arguments) {
  const Parameters given("find", arguments, {"sub", "start", "end"}, 1);
  const Text& text = *self.text();
  renderer.context().meter.scan(text.bytes.size());
  const auto range = searched(text, given, 1);
  if (!range) return -1;
  const std::string_view part = std::string_view(text.bytes).substr(range->first, range->second - range->first);
  const size_t at = from == From::kLeft ? find_in(part, given.text(0).bytes) : rfind_in(part, given.text(0).bytes);
  return at == npos ? -1 : static_cast<int64_t>(index_of_offset(text, range->first + at));
}

template <From from>
Value find_text(Renderer& renderer, const Value& self, const CallArguments& arguments) {
  return found_in<from>(renderer, self, arguments);
}

template <From from>
Value index_text(Renderer& renderer, const Value& self, const CallArguments& arguments) {
  const int64_t at = found_in<from>(renderer, self, arguments);
  if (at < 0) fail("substring not found");
  return at;
}

Value count(Renderer& renderer, const Value& self, const CallArguments& arguments) {
  const Parameters given("count", arguments, {"sub", "start", "end"}, 1);
  const Text &text = *self.text(), &part = given.text(0);
  renderer.context().meter.scan(text.bytes.size());
  const auto range = searched(text, given, 1);
  if (!range) return int64_t{0};
  const std::string_view bytes = std::string_view(text.bytes).substr(range->first, range->second - range->first);
  if (part.bytes.empty())
    return static_cast<int64_t>(index_of_offset(text, range->second) - index_of_offset(text, range->first) + 1);
  int64_t number = 0;
  for (size_t at = 0; (at = find_in(bytes, part.bytes, at)) != npos; at += part.bytes.size()) ++number;
  return number;
}

enum class End : uint8_t { kFirst, kLast };

template <End end>
bool is_at_end(std::string_view text, const Value& part) {
  if (part.text() == nullptr) fail("startswith first arg must be str or a tuple of str, not ", type_name(part));
  return end == End::kFirst ? text.starts_with(part.text()->bytes) : text.ends_with(part.text()->bytes);
}

template <End end>
Value has_at_end(Renderer&, const Value& self, const CallArguments& arguments) {
  const Parameters given("startswith", arguments, {"prefix", "start", "end"}, 1);
  const Text& text = *self.text();
  const auto range = searched(text, given, 1);
  if (!range) return false;
  const std::string_view part = std::string_view(text.bytes).substr(range->first, range->second - range->first);
  const List* several = given[0]->list();
  if (several == nullptr || several->kind != List::Kind::kTuple) return is_at_end<end>(part, *given[0]);
  return std::ranges::any_of(several->items, [&](const Value& one) { return is_at_end<end>(part, one); });
}

template <End end>
Value remove_at_end(Renderer& renderer, const Value& self, const CallArguments& arguments) {
  const Parameters given("removeprefix", arguments, {"prefix"}, 1);
  const Text &text = *self.text(), &part = given.text(0);
  if (!is_at_end<end>(text.bytes, *given[0])) return self;
  const size_t size = part.bytes.size();
  return end == End::kFirst ? renderer.context().part(text, size, text.bytes.size())
                            : renderer.context().part(text, 0, text.bytes.size() - size);
}

enum class Align : uint8_t { kLeft, kRight, kCenter };

template <Align align>
Value pad(Renderer& renderer, const Value& self, const CallArguments& arguments) {
  const Parameters given("center", arguments, {"width", "fillchar"}, 1);
  if (given[1] != nullptr && num_code_points(given.text(1)) != 1)
    fail("The fill character must be exactly one character long");
  const int64_t width = given.integer(0, 0);
  const int64_t more = std::max<int64_t>(width - static_cast<int64_t>(num_code_points(*self.text())), 0);
  const int64_t left = align == Align::kLeft ? 0 : align == Align::kRight ? more : more / 2 + (more & width & 1);
  return padded(renderer.context(), *self.text(), left, more - left, given[1] == nullptr ? " " : given.text(1).bytes);
}

Value zero_fill(Renderer& renderer, const Value& self, const CallArguments& arguments) {
  const Parameters given("zfill", arguments, {"width"}, 1);
  const Text& text = *self.text();
  const int64_t more = given.integer(0, 0) - static_cast<int64_t>(num_code_points(text));
  if (more <= 0) return self;
  const size_t sign = text.bytes.starts_with('-') || text.bytes.starts_with('+') ? 1 : 0;
  TextBuilder builder(&renderer.context().meter);
  builder.append(TextPart{&text, 0, sign});
  builder.repeat(*constant_text("0"), static_cast<size_t>(more));
  builder.append(TextPart{&text, sign, text.bytes.size()});
  return builder.finish();
}

template <bool (*passes)(char32_t)>
Value all_are(Renderer& renderer, const Value& self, const CallArguments& arguments) {
  const Parameters none("isalpha", arguments, {});
  renderer.context().meter.scan(self.text()->bytes.size());
  return all_characters(*self.text(), passes);
}

bool is_alphanumeric(char32_t c) { return is_alphabetic(c) || is_numeric(c); }

Value is_ascii(Renderer&, const Value& self, const CallArguments& arguments) {
  const Parameters none("isascii", arguments, {});
  return self.text()->is_ascii;
}

template <bool (*is_case)(const Text&)>
Value has_case(Renderer& renderer, const Value& self, const CallArguments& arguments) {
  const Parameters none("islower", arguments, {});
  renderer.context().meter.scan(self.text()->bytes.size());
  return is_case(*self.text());
}

Value format(Renderer& renderer, const Value& self, const CallArguments& arguments) {
  return brace_formatted(renderer.context(), *self.text(), arguments);
}

constexpr std::pair<std::string_view, TextMethod> kMethods[] = {{"capitalize", capitalize},
                                                                {"casefold", map_case<append_folded>},
                                                                {"center", pad<Align::kCenter>},
                                                                {"count", count},
                                                                {"endswith", has_at_end<End::kLast>},
                                                                {"find", find_text<From::kLeft>},
                                                                {"format", format},
                                                                {"index", index_text<From::kLeft>},
                                                                {"isalnum", all_are<is_alphanumeric>},
                                                                {"isalpha", all_are<is_alphabetic>},
                                                                {"isascii", is_ascii},
                                                                {"isdecimal", all_are<is_decimal>},
                                                                {"isdigit", all_are<is_decimal>},
                                                                {"islower", has_case<is_lower_text>},
                                                                {"isnumeric", all_are<is_numeric>},
                                                                {"isspace", all_are<is_python_space>},
                                                                {"isupper", has_case<is_upper_text>},
                                                                {"join", join},
                                                                {"ljust", pad<Align::kLeft>},
                                                                {"lower", map_case<append_lower>},
                                                                {"lstrip", strip<Side::kLeft>},
                                                                {"partition", partition<From::kLeft>},
                                                                {"removeprefix", remove_at_end<End::kFirst>},
                                                                {"removesuffix", remove_at_end<End::kLast>},
                                                                {"replace", replace},
                                                                {"rfind", find_text<From::kRight>},
                                                                {"rindex", index_text<From::kRight>},
                                                                {"rjust", pad<Align::kRight>},
                                                                {"rpartition", partition<From::kRight>},
                                                                {"rsplit", split_text<From::kRight>},
                                                                {"rstrip", strip<Side::kRight>},
                                                                {"split", split_text<From::kLeft>},
                                                                {"splitlines", split_lines},
                                                                {"startswith", has_at_end<End::kFirst>},
                                                                {"strip", strip<Side::kBoth>},
                                                                {"swapcase", map_case<append_swapped>},
                                                                {"title", title},
                                                                {"upper", map_case<append_upper>},
                                                                {"zfill", zero_fill}};
static_assert(std::ranges::is_sorted(kMethods, {}, &std::pair<std::string_view, TextMethod>::first));

}  // namespace

TextMethod text_method(std::string_view name) {
  const auto* found = std::ranges::lower_bound(kMethods, name, {}, &std::pair<std::string_view, TextMethod>::first);
  return found != std::end(kMethods) && found->first == name ? found->second : nullptr;
}

}  // namespace headrace::jinja
