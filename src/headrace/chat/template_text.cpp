#include "headrace/chat/template_text.h"

#include <algorithm>
#include <cstring>

#include "headrace/text/utf8.h"

namespace headrace::jinja {
namespace {

bool begins_code_point(char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }

}  // namespace

bool is_ascii(std::string_view bytes) {
  uint64_t all = 0;  // eight bytes at a time
  for (; bytes.size() >= sizeof(all); bytes.remove_prefix(sizeof(all))) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data(), sizeof(word));
    all |= word;
  }
  for (const char c : bytes) all |= static_cast<unsigned char>(c);
  return (all & 0x8080808080808080) == 0;
}

void TextBuilder::reserve(size_t more) {
  const size_t needed = bytes_.size() + more;
  if (needed <= bytes_.capacity()) return;
  const size_t capacity = std::max(needed, bytes_.capacity() * 2);
  held_.grow_to(kOverhead + capacity + literal_.capacity() * sizeof(TextSpan));
  if (meter_ != nullptr) meter_->scan(bytes_.size());
  bytes_.reserve(capacity);
}

void TextBuilder::add_literal(size_t begin, size_t end) {
  if (begin == end) return;
  if (!literal_.empty() && literal_.back().end == begin) {
    literal_.back().end = end;
    return;
  }
  if (literal_.size() == literal_.capacity()) {
    const size_t capacity = std::max<size_t>(4, literal_.capacity() * 2);
    held_.grow_to(kOverhead + bytes_.capacity() + capacity * sizeof(TextSpan));
    literal_.reserve(capacity);
  }
  literal_.push_back({begin, end});
}

void TextBuilder::append(std::string_view bytes, Origin origin) {
  if (meter_ != nullptr) meter_->scan(bytes.size());
  reserve(bytes.size());
  const size_t begin = bytes_.size();
  bytes_.append(bytes);
  if (origin == Origin::kLiteral) add_literal(begin, bytes_.size());
}

void TextBuilder::append(TextPart part) {
  if (part.text->literal.empty()) return append(part.view());
  reserve(part.end - part.begin);
  for_each_run(part, [this](std::string_view bytes, Origin origin) { append(bytes, origin); });
}

void TextBuilder::repeat(const Text& text, size_t count) {
  if (text.bytes.empty() || count == 0) return;
  constexpr size_t kFarTooMany = static_cast<size_t>(-1) / 4;  // sums with it do not overflow
  size_t total = 0;
  if (__builtin_mul_overflow(text.bytes.size(), count, &total)) total = kFarTooMany;
  reserve(std::min(total, kFarTooMany));
  if (!text.literal.empty()) {
    for (size_t i = 0; i < count; ++i) append(text);
    return;
  }
  if (meter_ != nullptr) meter_->scan(total);
  for (size_t i = 0; i < count; ++i) bytes_ += text.bytes;
}

TextPtr TextBuilder::finish(bool is_markup) {
  auto text = std::make_shared<Text>();
  text->is_ascii = is_ascii(bytes_);
  text->is_markup = is_markup;
  text->bytes = std::move(bytes_);
  text->literal = std::move(literal_);
  text->held = std::move(held_);
  bytes_.clear(), literal_.clear();
  held_ = HeldMemory(meter_, kOverhead);
  return text;
}

TextPtr constant_text(std::string_view bytes) {
  TextBuilder builder(nullptr);
  builder.append(bytes);
  return builder.finish();
}

bool is_python_space(char32_t c) { return is_white_space(c) || (c >= 0x1C && c <= 0x1F); }

size_t num_code_points(const Text& text) {
  if (text.is_ascii) return text.bytes.size();
  return static_cast<size_t>(std::ranges::count_if(text.bytes, begins_code_point));
}

size_t offset_of(const Text& text, size_t index) {
  if (text.is_ascii) return std::min(index, text.bytes.size());
  size_t at = 0;
  while (index > 0 && at < text.bytes.size()) {
    ++at;
    while (at < text.bytes.size() && !begins_code_point(text.bytes[at])) ++at;
    --index;
  }
  return at;
}

size_t index_of_offset(const Text& text, size_t offset) {
  if (text.is_ascii) return offset;
  const std::string_view before = std::string_view(text.bytes).substr(0, offset);
  return static_cast<size_t>(std::ranges::count_if(before, begins_code_point));
}

size_t find_in(std::string_view text, std::string_view needle, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  const void* found = memmem(text.data() + from, text.size() - from, needle.data(), needle.size());
  return found == nullptr ? std::string_view::npos : static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

size_t rfind_in(std::string_view text, std::string_view needle) {
  if (needle.size() < 16) return text.rfind(needle);  // short: its product with the text is linear
  const std::string back(text.rbegin(), text.rend()), reversed(needle.rbegin(), needle.rend());
  const size_t found = find_in(back, reversed);
  return found == std::string_view::npos ? found : text.size() - found - needle.size();
}

}  // namespace headrace::jinja
