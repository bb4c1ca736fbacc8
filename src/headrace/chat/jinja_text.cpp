#include "headrace/chat/jinja_text.h"

#include <algorithm>
#include <utility>

#include "headrace/chat/text_case.h"
#include "headrace/text/utf8.h"

namespace headrace::jinja {
namespace {

bool holds(std::string_view characters, std::string_view character) {
  return find_in(characters, character) != std::string_view::npos;
}

bool is_stripped(std::string_view bytes, size_t begin, size_t end, const Text* characters) {
  if (characters != nullptr) return holds(characters->bytes, bytes.substr(begin, end - begin));
  return is_python_space(next_code_point(bytes, begin));
}

size_t next_offset(std::string_view bytes, size_t at) {
  next_code_point(bytes, at);
  return at;
}

// Parts of a text, in bytes. Their memory counts.
class Ranges {
 public:
  explicit Ranges(const Context& context) : held_(&context.meter, 0) {}

  void add(size_t begin, size_t end) {
    if (all.size() == all.capacity()) {
      const size_t capacity = std::max<size_t>(8, all.capacity() * 2);
      held_.grow_to(capacity * sizeof(all[0]));
      all.reserve(capacity);
    }
    all.emplace_back(begin, end);
  }

  std::vector<std::pair<size_t, size_t>> all;

 private:
  HeldMemory held_;
};

std::vector<Value> parts_of(const Context& context, const Text& text, const Ranges& ranges) {
  const HeldMemory held(&context.meter, ranges.all.size() * sizeof(Value));
  std::vector<Value> parts;
  parts.reserve(ranges.all.size());
  for (const auto& [begin, end] : ranges.all) parts.emplace_back(context.part(text, begin, end));
  return parts;
}

Ranges ranges_from_left(const Context& context, std::string_view bytes, std::string_view separator, int64_t most) {
  Ranges ranges(context);
  size_t begin = 0;
  for (; most != 0; --most) {
    const size_t cut = find_in(bytes, separator, begin);
    if (cut == bytes.npos) break;
    ranges.add(begin, cut);
    begin = cut + separator.size();
  }
  ranges.add(begin, bytes.size());
  return ranges;
}

Ranges ranges_from_right(const Context& context, std::string_view bytes, std::string_view separator, int64_t most) {
  const HeldMemory held(&context.meter, bytes.size() + separator.size());
  const std::string back(bytes.rbegin(), bytes.rend()), mirrored(separator.rbegin(), separator.rend());
  Ranges ranges = ranges_from_left(context, back, mirrored, most);
  for (auto& [begin, end] : ranges.all) begin = bytes.size() - std::exchange(end, bytes.size() - begin);
  std::ranges::reverse(ranges.all);
  return ranges;
}

Ranges words_of(const Context& context, std::string_view bytes) {
  Ranges words(context);
  for (size_t at = 0; at < bytes.size();) {
    const size_t begin = at;
    if (is_python_space(next_code_point(bytes, at))) continue;
    if (!words.all.empty() && words.all.back().second == begin) {
      words.all.back().second = at;
    } else {
      words.add(begin, at);
    }
  }
  return words;
}

bool is_line_end(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

bool one_case(const Text& text, bool (*is_case)(char32_t)) {
  bool any = false;
  for (size_t at = 0; at < text.bytes.size();) {
    const char32_t c = next_code_point(text.bytes, at);
    if (!is_cased(c)) continue;
    if (!is_case(c)) return false;
    any = true;
  }
  return any;
}

void append_mapped_part(TextBuilder& builder, TextPart part, CaseMap map) {
  for_each_run(part, [&](std::string_view bytes, Origin origin) {
    std::string out;
    map(bytes, out);
    builder.append(out, origin);
  });
}

void append_html(std::string_view bytes, std::string& out) {
  for (const char c : bytes) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&#34;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
}

}  // namespace

TextPtr stripped(const Context& context, const Text& text, Side side, const Text* characters) {
  const std::string_view bytes = text.bytes;
  size_t begin = 0, end = bytes.size();
  if (side != Side::kRight) {
    while (begin < end && is_stripped(bytes, begin, next_offset(bytes, begin), characters))
      begin = next_offset(bytes, begin);
  }
  if (side != Side::kLeft) {
    while (end > begin && is_stripped(bytes, previous_start(bytes, end), end, characters))
      end = previous_start(bytes, end);
  }
  if (characters != nullptr) context.meter.scan((bytes.size() - (end - begin)) * characters->bytes.size());
  return context.part(text, begin, end);
}

TextPtr replaced(const Context& context, const Text& text, const Text& old, const Text& with, int64_t most) {
  context.meter.scan(text.bytes.size());
  TextBuilder builder(&context.meter);
  size_t done = 0, at = 0;
  for (; most != 0 && at <= text.bytes.size(); --most) {
    const size_t found = find_in(text.bytes, old.bytes, at);
    if (found == std::string::npos) break;
    builder.append(TextPart{&text, done, found});
    builder.append(with);
    done = found + old.bytes.size();
    at = !old.bytes.empty() ? done : found < text.bytes.size() ? next_offset(text.bytes, found) : found + 1;
  }
  builder.append(TextPart{&text, done, text.bytes.size()});
  return builder.finish();
}

std::vector<Value> split(const Context& context, const Text& text, const Text& separator, int64_t most, From from) {
  if (separator.bytes.empty()) fail("empty separator");
  context.meter.scan(text.bytes.size());
  return parts_of(context, text,
                  from == From::kLeft ? ranges_from_left(context, text.bytes, separator.bytes, most)
                                      : ranges_from_right(context, text.bytes, separator.bytes, most));
}

std::vector<Value> split_at_space(const Context& context, const Text& text, int64_t most, From from) {
  context.meter.scan(text.bytes.size());
  Ranges words = words_of(context, text.bytes);
  auto& all = words.all;
  const auto count = static_cast<int64_t>(all.size());
  if (most < 0 || count <= most) return parts_of(context, text, words);
  const auto kept = static_cast<std::ptrdiff_t>(count - most - 1);  // words that join the last or the first part
  if (from == From::kLeft) {
    all.erase(all.end() - kept, all.end());
    all.back().second = text.bytes.size();
  } else {
    all.erase(all.begin(), all.begin() + kept);
    all.front().first = 0;
  }
  return parts_of(context, text, words);
}

std::vector<TextPart> lines_of(const Context& context, const Text& text, LineEnds ends) {
  const std::string_view bytes = text.bytes;
  context.meter.scan(bytes.size());
  const HeldMemory held(&context.meter, static_cast<size_t>(std::ranges::count(bytes, '\n')) * sizeof(TextPart));
  std::vector<TextPart> lines;
  size_t begin = 0;
  for (size_t at = 0; at < bytes.size();) {
    const size_t end = at;
    const char32_t c = next_code_point(bytes, at);
    if (!is_line_end(c)) continue;
    if (c == '\r' && at < bytes.size() && bytes[at] == '\n') ++at;
    lines.push_back({&text, begin, ends == LineEnds::kKeep ? at : end});
    begin = at;
  }
  if (begin < bytes.size()) lines.push_back({&text, begin, bytes.size()});
  return lines;
}

TextPtr joined(const Context& context, const Text& separator, const std::vector<Value>& items) {
  TextBuilder builder(&context.meter);
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) builder.append(separator);
    append_str(context, items[i], builder);
  }
  return builder.finish();
}

TextPtr padded(const Context& context, const Text& text, int64_t left, int64_t right, std::string_view fill) {
  TextBuilder builder(&context.meter);
  const TextPtr one = constant_text(fill);
  builder.repeat(*one, static_cast<size_t>(std::max<int64_t>(left, 0)));
  builder.append(text);
  builder.repeat(*one, static_cast<size_t>(std::max<int64_t>(right, 0)));
  return builder.finish();
}

TextPtr mapped(const Context& context, const Text& text, CaseMap map) {
  TextBuilder builder(&context.meter);
  append_mapped_part(builder, {&text, 0, text.bytes.size()}, map);
  return builder.finish();
}

TextPtr capitalized(const Context& context, const Text& text) {
  TextBuilder builder(&context.meter);
  const size_t second = text.bytes.empty() ? 0 : next_offset(text.bytes, 0);
  append_mapped_part(builder, {&text, 0, second}, append_title);
  append_mapped_part(builder, {&text, second, text.bytes.size()}, append_lower);
  return builder.finish();
}

TextPtr titled(const Context& context, const Text& text) {
  TextBuilder builder(&context.meter);
  bool in_word = false;
  for (size_t at = 0; at < text.bytes.size();) {
    const size_t begin = at;
    const bool cased = is_cased(next_code_point(text.bytes, at));
    append_mapped_part(builder, {&text, begin, at}, in_word ? append_lower : append_title);
    in_word = cased;
  }
  return builder.finish();
}

TextPtr reversed(const Context& context, const Text& text) {
  TextBuilder builder(&context.meter);
  for (size_t end = text.bytes.size(); end > 0;) {
    const size_t begin = previous_start(text.bytes, end);
    builder.append(TextPart{&text, begin, end});
    end = begin;
  }
  return builder.finish();
}

TextPtr escaped_html(const Context& context, const Text& text) {
  TextBuilder builder(&context.meter);
  append_mapped_part(builder, {&text, 0, text.bytes.size()}, append_html);
  return builder.finish_markup();
}

TextPtr safe_html(const Context& context, const Text& text) {
  TextBuilder builder(&context.meter);
  builder.append(text);
  return builder.finish_markup();
}

bool all_characters(const Text& text, bool (*passes)(char32_t)) {
  for (size_t at = 0; at < text.bytes.size();)
    if (!passes(next_code_point(text.bytes, at))) return false;
  return !text.bytes.empty();
}

bool is_lower_text(const Text& text) { return one_case(text, is_lower); }
bool is_upper_text(const Text& text) { return one_case(text, is_upper); }

}  // namespace headrace::jinja
