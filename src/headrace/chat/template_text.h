// Text of a rendering: UTF-8 that knows which of its bytes a message, a tool or a variable brought. Such bytes are
// literal: they never become a special token.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/chat/render_meter.h"
#include "headrace/text/added_tokens.h"

namespace headrace::jinja {

enum class Origin : uint8_t { kTemplate, kLiteral };

// Immutable once it is made.
struct Text {
  std::string bytes;              // valid UTF-8
  std::vector<TextSpan> literal;  // ascending, not empty, apart
  bool is_ascii = true;
  bool is_markup = false;  // of the filters safe and escape: "+" escapes what is added to it
  HeldMemory held;
};
using TextPtr = std::shared_ptr<const Text>;

// Bytes of `text` from `begin` to `end`.
struct TextPart {
  const Text* text;
  size_t begin, end;

  std::string_view view() const { return std::string_view(text->bytes).substr(begin, end - begin); }
};

// Makes a Text. Its memory counts from the first byte. A null meter: text of the template itself.
class TextBuilder {
 public:
  explicit TextBuilder(RenderMeter* meter) : meter_(meter), held_(meter, kOverhead) {}

  void append(std::string_view bytes, Origin origin = Origin::kTemplate);
  void append(const Text& text) { append(TextPart{&text, 0, text.bytes.size()}); }
  void append(TextPart part);
  void repeat(const Text& text, size_t count);
  size_t size() const { return bytes_.size(); }
  // The builder is empty behind it.
  TextPtr finish() { return finish(false); }
  TextPtr finish_markup() { return finish(true); }

 private:
  static constexpr size_t kOverhead = sizeof(Text) + 32;
  TextPtr finish(bool is_markup);
  void add_literal(size_t begin, size_t end);
  void reserve(size_t more);

  RenderMeter* meter_;
  HeldMemory held_;
  std::string bytes_;
  std::vector<TextSpan> literal_;
};

// Returns `bytes` as text of the template, uncounted.
TextPtr constant_text(std::string_view bytes);

// Calls use(bytes, origin) for each run of `part`'s bytes with one origin, in order.
template <class Use>
void for_each_run(TextPart part, Use&& use);

// Python's str.isspace() for one character; what strip() and split() take away.
bool is_python_space(char32_t c);

size_t num_code_points(const Text& text);
// The byte at which code point `index` begins; bytes.size() for the one behind the last.
size_t offset_of(const Text& text, size_t index);
size_t index_of_offset(const Text& text, size_t offset);

// The first `needle` in `text` at `from` or behind, npos if there is none; in linear time.
size_t find_in(std::string_view text, std::string_view needle, size_t from = 0);
size_t rfind_in(std::string_view text, std::string_view needle);

// ---- Implementation ----
template <class Use>
void for_each_run(TextPart part, Use&& use) {
  const std::string_view bytes = part.text->bytes;
  size_t at = part.begin;
  const auto emit = [&](size_t end, Origin origin) {
    if (end > at) use(bytes.substr(at, end - at), origin);
    at = end > at ? end : at;
  };
  const auto& spans = part.text->literal;
  auto span = std::partition_point(spans.begin(), spans.end(), [at](const TextSpan& one) { return one.end <= at; });
  for (; span != spans.end() && span->begin < part.end; ++span) {
    emit(span->begin, Origin::kTemplate);
    emit(std::min(span->end, part.end), Origin::kLiteral);
  }
  emit(part.end, Origin::kTemplate);
}

}  // namespace headrace::jinja
