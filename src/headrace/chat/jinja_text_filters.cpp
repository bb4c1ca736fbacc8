// Filters of texts and numbers.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>

#include "headrace/chat/jinja_access.h"
#include "headrace/chat/jinja_arguments.h"
#include "headrace/chat/jinja_filters.h"
#include "headrace/chat/jinja_json.h"
#include "headrace/chat/jinja_operators.h"
#include "headrace/chat/jinja_text.h"
#include "headrace/chat/python_format.h"
#include "headrace/chat/python_number.h"
#include "headrace/chat/text_case.h"
#include "headrace/text/utf8.h"

namespace headrace::jinja {
namespace {

template <CaseMap map>
Value map_case(Renderer& renderer, const Value& input, const CallArguments& arguments) {
  const Parameters none("upper", arguments, {});
  return mapped(renderer.context(), *to_text(renderer.context(), input), map);
}

Value capitalize(Renderer& renderer, const Value& input, const CallArguments& arguments) {
  const Parameters none("capitalize", arguments, {});
  return capitalized(renderer.context(), *to_text(renderer.context(), input));
}

// Words begin behind white space, "-" and opening brackets, as do_title() has it.
Value title(Renderer& renderer, const Value& input, const CallArguments& arguments) {
  const Parameters none("title", arguments, {});
  const Context& context = renderer.context();
  const TextPtr text = to_text(context, input);
  TextBuilder builder(&context.meter);
  bool begins = true;
  for (size_t at = 0; at < text->bytes.size();) {
    const size_t begin = at;
    const char32_t c = next_code_point(text->bytes, at);
    const bool separates = is_python_space(c) || std::u32string_view(U"-({[<").find(c) != std::u32string_view::npos;
    for_each_run({text.get(), begin, at}, [&](std::string_view bytes, Origin origin) {
      std::string out;
      begins && !separates ? append_upper(bytes, out) : append_lower(bytes, out);
      builder.append(out, origin);
    });
    begins = separates;
  }
  return builder.finish();
}

Value trim(Renderer& renderer, const Value& input, const CallArguments& arguments) {
  const Parameters given("trim", arguments, {"chars"});
  return stripped(renderer.context(), *to_text(renderer.context(), input), Side::kBoth,
                  given.is_given(0) ? &given.text(0) : nullptr);
}

Value replace(Renderer& renderer, const Value& input, const CallArguments& arguments) {
  const Parameters given("replace", arguments, {"old", "new", "count"}, 2);
  const Context& context = renderer.context();
  const TextPtr text = to_text(context, input), old = to_text(context, *given[0]), with = to_text(context, *given[1]);
  return replaced(context, *text, *old, *with, given.is_given(2) ? given.integer(2, -1) : -1);
}

Value string(Renderer& renderer, const Value& input, const CallArguments& arguments) {
  const Parameters none("string", arguments, {});
  return to_text(renderer.context(), input);
}

Value escape(Renderer& renderer, const Value& input, const CallArguments& arguments) {
  const Parameters none("escape", arguments, {});
  if (input.text() != nullptr && input.text()->is_markup) return input;
  return escaped_html(renderer.context(), *to_text(renderer.context(), input));
}

Value force_escape(Renderer& renderer, const Value& input, const CallArguments& arguments) {
  const Parameters none("forceescape", arguments, {});
  return escaped_html(renderer.context(), *to_text(renderer.context(), input));
}

Value safe(Renderer& renderer, const Value& input, const CallArguments& arguments) {
  const Parameters none("safe", arguments, {});
  return safe_html(renderer.context(), *to_text(renderer.context(), input));
}

Value center(Renderer& renderer, const Value& input, const CallArguments& arguments) {
  const Parameters given("center", arguments, {"width"});
  const Context& context = renderer.context();
  CallArguments width{.positional = {given.integer(0, 80)}, .keywords = {}};
  return call_method(renderer, to_text(context, input), "center", width);
}

const Text& required_text(const Value& input, std::string_view what) {
  if (input.is_undefined()) fail(input.undefined().message());
  if (input.text() == nullptr) fail("'", type_name(input), "' object has no attribute '", what, "'");
  return *input.text();
}

Value indent(Renderer& renderer, const Value& input, const CallArguments& arguments) {
  const Parameters given("indent", arguments, {"width", "first", "blank"});
  const Context& context = renderer.context();
  const Text& text = required_text(input, "splitlines");
  const bool first = given.flag(1, false), blank = given.flag(2, false);
  const TextPtr margin = given[0] != nullptr && given[0]->text() != nullptr
                             ? given[0]->text_ptr()
                             : padded(context, *constant_text(""), given.integer(0, 4), 0);
  std::vector<TextPart> lines = lines_of(context, text);
  if (text.bytes.empty() || text.bytes.ends_with('\n')) lines.push_back({&text, text.bytes.size(), text.bytes.size()});
  TextBuilder builder(&context.meter);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) builder.append("\n");
    const bool indented = i == 0 ? first : blank || lines[i].begin != lines[i].end;
    if (indented) builder.append(*margin);
    builder.append(lines[i]);
  }
  return builder.finish();
}

Value truncate(Renderer& renderer, const Value& input, const CallArguments& arguments) {
  const Parameters given("truncate", arguments, {"length", "killwords", "end", "leeway"});
  const Context& context = renderer.context();
  const Text& text = required_text(input, "truncate");
  const TextPtr end = given[2] == nullptr ? constant_text("...") : to_text(context, *given[2]);
  const int64_t length = given.integer(0, 255), leeway = given.is_given(3) ? given.integer(3, 5) : 5;
  const auto end_length = static_cast<int64_t>(num_code_points(*end));
  if (length < end_length) fail("expected length >= ", end_length, ", got ", length);
  if (leeway < 0) fail("expected leeway >= 0, got ", leeway);
  const auto size = static_cast<int64_t>(num_code_points(text));
  if (size - leeway <= length) return input;
  size_t cut = offset_of(text, static_cast<size_t>(length - end_length));
  if (!given.flag(1, false)) {
    const size_t space = std::string_view(text.bytes).substr(0, cut).rfind(' ');
    if (space != std::string_view::npos) cut = space;
  }
  TextBuilder builder(&context.meter);
  builder.append(TextPart{&text, 0, cut});
  builder.append(*end);
  return builder.finish();
}

Value wordcount(Renderer& renderer, const Value& input, const CallArguments& arguments) {
  const Parameters none("wordcount", arguments, {});
  const TextPtr text = to_text(renderer.context(), input);
  int64_t count = 0;
  bool in_word = false;
  for (size_t at = 0; at < text->bytes.size();) {
    const char32_t c = next_code_point(text->bytes, at);
    const bool is_word = c == '_' || is_alphabetic(c) || is_numeric(c);
    count += is_word && !in_word ? 1 : 0;
    in_word = is_word;
  }
  return count;
}

// Python's int(text, base); nullopt if it is none. Error: one of more than 64 bits.
std::optional<int64_t> parsed_integer(const Context& context, const Text& text, int64_t base) {
  std::string digits = stripped(context, text, Side::kBoth)->bytes;
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) digits.erase(0, 1);
  if (base < 2 || base > 36) return std::nullopt;
  const char mark = digits.size() > 2 && digits[0] == '0' ? static_cast<char>(digits[1] | 0x20) : '\0';
  if ((base == 16 && mark == 'x') || (base == 8 && mark == 'o') || (base == 2 && mark == 'b')) digits.erase(0, 2);
  for (size_t i = 1; i + 1 < digits.size(); ++i)
    if (digits[i] == '_' && digits[i - 1] != '_' && digits[i + 1] != '_') digits.erase(i, 1);
  if (digits.empty() || digits[0] == '-') return std::nullopt;
  int64_t value = 0;
  if (negative) digits.insert(0, 1, '-');
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, static_cast<int>(base));
  if (end != digits.data() + digits.size()) return std::nullopt;
  if (error == std::errc::result_out_of_range) fail_integer_size();
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

// Python's float(text).
std::optional<double> parsed_float(const Context& context, const Text& text) {
  std::string digits = stripped(context, text, Side::kBoth)->bytes;
  for (size_t i = 1; i + 1 < digits.size(); ++i)
    if (digits[i] == '_' && std::isdigit(digits[i - 1]) != 0 && std::isdigit(digits[i + 1]) != 0) digits.erase(i, 1);
  if (digits.starts_with('+')) digits.erase(0, 1);
  if (digits.starts_with('+') || digits.find_first_of("xX(") != digits.npos) return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (end != digits.data() + digits.size() || digits.empty()) return std::nullopt;
  if (error == std::errc::result_out_of_range) return std::strtod(digits.c_str(), nullptr);
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

std::optional<int64_t> truncated(std::optional<double> value) {
  if (!value || !std::isfinite(*value)) return std::nullopt;
  if (std::fabs(*value) >= 9.2e18) fail_integer_size();
  return static_cast<int64_t>(*value);
}

Value to_int(Renderer& renderer, const Value& input, const CallArguments& arguments) {
  const Parameters given("int", arguments, {"default", "base"});
  const Context& context = renderer.context();
  if (input.is_undefined()) fail(input.undefined().message());
  std::optional<int64_t> value;
  if (const Text* text = input.text()) {
    value = parsed_integer(context, *text, given.integer(1, 10));
    if (!value) value = truncated(parsed_float(context, *text));
  } else if (input.is_integer()) {
    value = input.integer();
  } else if (input.is_float()) {
    if (std::isinf(input.number())) fail("cannot convert float infinity to integer");
    value = truncated(input.number());
  }
  return value ? Value(*value) : given[0] == nullptr ? Value(int64_t{0}) : *given[0];
}

Value to_float(Renderer& renderer, const Value& input, const CallArguments& arguments) {
  const Parameters given("float", arguments, {"default"});
  if (input.is_undefined()) fail(input.undefined().message());
  if (input.is_number()) return input.number();
  const auto value = input.text() == nullptr ? std::nullopt : parsed_float(renderer.context(), *input.text());
  return value ? Value(*value) : given[0] == nullptr ? Value(0.0) : *given[0];
}

Value absolute(Renderer&, const Value& input, const CallArguments& arguments) {
  const Parameters none("abs", arguments, {});
  if (input.is_undefined()) fail(input.undefined().message());
  if (!input.is_number()) fail("bad operand type for abs(): '", type_name(input), "'");
  if (input.is_float()) return std::fabs(input.number());
  return input.integer() < 0 ? signed_value(Operator::kNegative, input) : Value(input.integer());
}

// Python's round(): to even, exactly as the decimal digits say.
double rounded(double value, int64_t precision) {
  if (!std::isfinite(value) || precision > 300) return value;
  if (precision < -300) return 0;
  if (precision < 0) {
    const double scale = std::pow(10.0, static_cast<double>(-precision));
    return std::nearbyint(value / scale) * scale;
  }
  const std::string digits = float_text(value, {.precision = precision, .type = 'f'});
  return std::strtod(digits.c_str(), nullptr);
}

Value round(Renderer& renderer, const Value& input, const CallArguments& arguments) {
  const Parameters given("round", arguments, {"precision", "method"});
  if (input.is_undefined()) fail(input.undefined().message());
  const int64_t precision = given.integer(0, 0);
  const std::string method = given[1] == nullptr ? "common" : to_text(renderer.context(), *given[1])->bytes;
  if (method != "common" && method != "ceil" && method != "floor") fail("method must be common, ceil or floor");
  if (!input.is_number()) fail("type ", type_name(input), " doesn't define __round__ method");
  if (method == "common") {
    if (input.is_integer())
      return precision >= 0 ? input.integer() : static_cast<int64_t>(rounded(input.number(), precision));
    return rounded(input.number(), precision);
  }
  const double scale = std::pow(10.0, static_cast<double>(precision)), value = input.number() * scale;
  return (method == "ceil" ? std::ceil(value) : std::floor(value)) / scale;
}

Value format(Renderer& renderer, const Value& input, const CallArguments& arguments) {
  const Context& context = renderer.context();
  if (!arguments.positional.empty() && !arguments.keywords.empty())
    fail("can't handle positional and keyword arguments at the same time");
  const TextPtr text = to_text(context, input);
  if (arguments.keywords.empty()) return printf_formatted(context, *text, context.tuple(arguments.positional));
  std::vector<std::pair<Value, Value>> named;
  for (const auto& [name, value] : arguments.keywords) named.emplace_back(name, value);
  return printf_formatted(context, *text, context.dict(std::move(named)));
}

Value default_of(Renderer&, const Value& input, const CallArguments& arguments) {
  const Parameters given("default", arguments, {"default_value", "boolean"});
  if (!input.is_undefined() && !(given.flag(1, false) && !is_true(input))) return input;
  return given[0] == nullptr ? Value(constant_text("")) : *given[0];
}

Value json(Renderer& renderer, const Value& input, const CallArguments& arguments) {
  const Parameters given("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  const Context& context = renderer.context();
  JsonStyle style{.ensure_ascii = given.flag(0, false), .sort_keys = given.flag(3, false)};
  if (given.is_given(1)) {
    style.item_separator = ",";
    style.indent = given[1]->text() != nullptr
                       ? given[1]->text()->bytes
                       : std::string(static_cast<size_t>(std::clamp<int64_t>(given.integer(1, 0), 0, 1000)), ' ');
  }
  if (given.is_given(2)) {
    const ListPtr both = items_of(context, *given[2]);
    if (both->items.size() != 2) fail("separators of tojson must be two texts");
    style.item_separator = to_text(context, both->items[0])->bytes;
    style.key_separator = to_text(context, both->items[1])->bytes;
  }
  return to_json(context, input, style);
}

Value urlencode(Renderer& renderer, const Value& input, const CallArguments& arguments) {
  const Parameters none("urlencode", arguments, {});
  const Context& context = renderer.context();
  if (input.text() == nullptr && is_iterable(input)) fail("urlencode of a ", type_name(input), " is not supported");
  return mapped(context, *to_text(context, input), [](std::string_view bytes, std::string& out) {
    constexpr std::string_view kSafe = "_.-~/", kHex = "0123456789ABCDEF";
    for (const char c : bytes) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte < 0x80 && (std::isalnum(byte) != 0 || kSafe.find(c) != kSafe.npos)) {
        out += c;
      } else {
        out += '%', out += kHex[byte >> 4], out += kHex[byte & 15];
      }
    }
  });
}

template <const char* name>
Value unsupported(Renderer&, const Value&, const CallArguments&) {
  fail("the filter '", name, "' is not supported");
}
constexpr char kFileSize[] = "filesizeformat", kPprint[] = "pprint", kRandom[] = "random", kStripTags[] = "striptags",
               kUrlize[] = "urlize", kWordWrap[] = "wordwrap", kXmlAttr[] = "xmlattr";

constexpr std::pair<std::string_view, FilterBody> kFilters[] = {{"abs", absolute},
                                                                {"capitalize", capitalize},
                                                                {"center", center},
                                                                {"d", default_of},
                                                                {"default", default_of},
                                                                {"e", escape},
                                                                {"escape", escape},
                                                                {"filesizeformat", unsupported<kFileSize>},
                                                                {"float", to_float},
                                                                {"forceescape", force_escape},
                                                                {"format", format},
                                                                {"indent", indent},
                                                                {"int", to_int},
                                                                {"lower", map_case<append_lower>},
                                                                {"pprint", unsupported<kPprint>},
                                                                {"random", unsupported<kRandom>},
                                                                {"replace", replace},
                                                                {"round", round},
                                                                {"safe", safe},
                                                                {"string", string},
                                                                {"striptags", unsupported<kStripTags>},
                                                                {"title", title},
                                                                {"tojson", json},
                                                                {"trim", trim},
                                                                {"truncate", truncate},
                                                                {"upper", map_case<append_upper>},
                                                                {"urlencode", urlencode},
                                                                {"urlize", unsupported<kUrlize>},
                                                                {"wordcount", wordcount},
                                                                {"wordwrap", unsupported<kWordWrap>},
                                                                {"xmlattr", unsupported<kXmlAttr>}};

}  // namespace

FilterBody text_filter(std::string_view name) {
  const auto* found = std::ranges::find(kFilters, name, &std::pair<std::string_view, FilterBody>::first);
  return found == std::end(kFilters) ? nullptr : found->second;
}

}  // namespace headrace::jinja
