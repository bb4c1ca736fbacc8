#include "headrace/text/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

#include "headrace/core/error.h"
#include "headrace/text/unicode_16.h"
#include "headrace/text/utf8.h"

namespace headrace {
namespace {

// Marks, and the two halves of a letter with its whole, that Unicode 10 to 14 added. The tables of the `tokenizers`
// package end with Unicode 9.
constexpr CodePointRange kAddedSinceUnicode9[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},
    {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},
    {0xA82C, 0xA82C},   {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85},
    {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11930},
    {0x11935, 0x11935}, {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0},
    {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45},
    {0x11D97, 0x11D97}, {0x16FF0, 0x16FF1}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}};

// One before the first final of Hangul. utf8proc composes it with a syllable as if it were one, and loses it so.
constexpr char32_t kBeforeFinals = 0x11A7;

// Returns true if NFC leaves `c` alone and moves nothing across it: `c` composes with nothing, or is newer than the
// tables that models were trained with.
bool is_inert(char32_t c) {
  return c >= kAddedSinceUnicode9[0].first && (c == kBeforeFinals || range_of(kAddedSinceUnicode9, c) != nullptr ||
                                               range_of(kAddedByUnicode16, c) != nullptr);
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

auto combining_class(utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; }

std::vector<utf8proc_int32_t> decomposed(std::string_view text) {
  constexpr size_t kLongest = 32;  // no canonical decomposition is longer than 4
  std::vector<utf8proc_int32_t> out;
  out.reserve(text.size());
  std::array<utf8proc_int32_t, kLongest> buffer;
  for (size_t at = 0; at < text.size();) {
    const auto c = static_cast<utf8proc_int32_t>(next_code_point(text, at));
    const auto count = utf8proc_decompose_char(c, buffer.data(), kLongest, UTF8PROC_DECOMPOSE, nullptr);
    HR_ASSERT(count >= 0 && count <= static_cast<utf8proc_ssize_t>(kLongest));
    out.insert(out.end(), buffer.begin(), buffer.begin() + count);
  }
  return out;
}

// Canonical ordering. Not utf8proc's, whose time is quadratic in a run of marks.
void order_marks(std::vector<utf8proc_int32_t>& text) {
  for (auto begin = text.begin(); begin != text.end();) {
    begin = std::find_if(begin, text.end(), [](auto c) { return combining_class(c) != 0; });
    const auto end = std::find_if(begin, text.end(), [](auto c) { return combining_class(c) == 0; });
    std::stable_sort(begin, end, [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    begin = end;
  }
}

// Appends the NFC of a text without inert code points.
void append_nfc(std::string_view text, std::string& out) {
  if (is_ascii(text)) {
    out += text;
    return;
  }
  std::vector<utf8proc_int32_t> points = decomposed(text);
  order_marks(points);
  const auto count = utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()),
                                              static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  HR_ASSERT(count >= 0);
  for (utf8proc_ssize_t i = 0; i < count; ++i) append_utf8(static_cast<char32_t>(points[static_cast<size_t>(i)]), out);
}

}  // namespace

std::string nfc(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  size_t done = 0;  // text before it is in `out`
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    if (!is_inert(next_code_point(text, at))) continue;
    append_nfc(text.substr(done, begin - done), out);
    out += text.substr(begin, at - begin);
    done = at;
  }
  append_nfc(text.substr(done), out);
  return out;
}

namespace {

// Limit on the output of a normalizer's steps for one text. Known normalizers make three bytes of one, in two or three
// steps.
class Budget {
 public:
  explicit Budget(size_t bytes) : bytes_(bytes), most_bytes_(8 * bytes + kExtra), work_left_(128 * (bytes + kExtra)) {}

  void require_bytes(size_t bytes) const {
    HR_REQUIRE(bytes <= most_bytes_, ErrorCode::kModelFile, "the normalizer of tokenizer.json makes more than ",
               most_bytes_, " bytes of a text of ", bytes_, ", more than a tokenizer needs");
  }
  // About the time that so many comparisons of bytes take.
  void spend(size_t work) {
    HR_REQUIRE(work <= work_left_, ErrorCode::kModelFile, "the normalizer of tokenizer.json reads a text of ", bytes_,
               " bytes too often, more than a tokenizer needs");
    work_left_ -= work;
  }

 private:
  static constexpr size_t kExtra = 64;  // for short texts

  size_t bytes_, most_bytes_, work_left_;
};

std::string replaced(std::string_view text, const NormalizerStep& step, Budget& budget) {
  constexpr size_t kCompared = 32;  // bytes at once
  budget.spend(text.size() * (1 + step.from.size() / kCompared));
  std::string out;
  out.reserve(text.size());
  size_t done = 0;
  for (size_t at = text.find(step.from); at != text.npos; at = text.find(step.from, done)) {
    out.append(text.substr(done, at - done)).append(step.to);
    done = at + step.from.size();
    budget.require_bytes(out.size());
  }
  return out.append(text.substr(done));
}

}  // namespace

std::string normalized(std::span<const NormalizerStep> steps, std::string_view text) {
  constexpr size_t kNfcWork = 8;  // to each byte
  Budget budget(text.size());
  std::string out(text);
  for (const NormalizerStep& step : steps) {
    if (step.kind == NormalizerStep::Kind::kNfc) {
      budget.spend(kNfcWork * out.size());
      out = nfc(out);
    } else {
      out = replaced(out, step, budget);
    }
    budget.require_bytes(out.size());
  }
  return out;
}

}  // namespace headrace
