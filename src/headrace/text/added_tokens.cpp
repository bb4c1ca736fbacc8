#include "headrace/text/added_tokens.h"

#include <utf8proc.h>

#include <algorithm>

#include "headrace/text/unicode_16.h"
#include "headrace/text/utf8.h"

namespace headrace {
namespace {

bool is_added_word_character(char32_t c) {
  const CodePointRange* range = range_of(kAddedByUnicode16, c);
  return range != nullptr && std::string_view("LMN").find(range->category.front()) != std::string_view::npos;
}

// \w of Unicode TS 18: Alphabetic, marks, decimal digits, connectors, joiners. Alphabetic beyond the letters, Nl and
// marks is the circled letters, all of category So.
bool is_word_character(char32_t c) {
  if (c == 0x200C || c == 0x200D) return true;
  if ((c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
      (c >= 0x1F170 && c <= 0x1F189))
    return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    case UTF8PROC_CATEGORY_CN: return is_added_word_character(c);  // unassigned, as far as it knows
    default: return false;
  }
}

bool is_inside_word(std::string_view text, size_t begin, size_t end) {
  size_t before = begin == 0 ? 0 : previous_start(text, begin);
  if (begin > 0 && is_word_character(next_code_point(text, before))) return true;
  return end < text.size() && is_word_character(next_code_point(text, end));
}

// The start of the white space before `end`, but not before `floor`: what was searched once is not searched again.
size_t space_begin(std::string_view text, size_t floor, size_t end) {
  while (end > floor) {
    const size_t start = previous_start(text, end);
    size_t at = start;
    if (!is_white_space(next_code_point(text, at))) break;
    end = start;
  }
  return end;
}

size_t space_end(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    size_t at = begin;
    if (!is_white_space(next_code_point(text, at))) break;
    begin = at;
  }
  return begin;
}

// The first of `spans` that ends behind `at`.
auto first_behind(std::span<const TextSpan> spans, size_t at) {
  return std::ranges::partition_point(spans, [at](const TextSpan& span) { return span.end <= at; });
}

bool shares_byte(std::span<const TextSpan> spans, size_t begin, size_t end) {
  const auto span = first_behind(spans, begin);
  return span != spans.end() && span->begin < end;
}

// True if some bytes are in `spans` and some are not: such a token is none, and may hide one that the template wrote.
bool straddles(std::span<const TextSpan> spans, size_t begin, size_t end) {
  const auto span = first_behind(spans, begin);
  return span != spans.end() && span->begin < end && (span->begin > begin || span->end < end);
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)), nodes_(1) {
  for (size_t i = 0; i < tokens_.size(); ++i) insert(static_cast<int32_t>(i));
}

int32_t AddedTokenMatcher::child(int32_t node, char byte) const {
  for (const auto& [label, to] : nodes_[static_cast<size_t>(node)].children)
    if (label == byte) return to;
  return kNone;
}

void AddedTokenMatcher::insert(int32_t token) {
  int32_t node = 0;
  for (const char byte : tokens_[static_cast<size_t>(token)].content) {
    int32_t next = child(node, byte);
    if (next == kNone) {
      next = static_cast<int32_t>(nodes_.size());
      nodes_.emplace_back();
      nodes_[static_cast<size_t>(node)].children.emplace_back(byte, next);
    }
    node = next;
  }
  int32_t& owner = nodes_[static_cast<size_t>(node)].token;
  if (owner == kNone) owner = token;
}

std::optional<AddedTokenMatcher::Match> AddedTokenMatcher::find(std::string_view text, size_t from,
                                                                std::span<const TextSpan> literal) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    std::optional<Match> longest;
    size_t end = begin;
    for (int32_t node = 0; end < text.size() && (node = child(node, text[end])) != kNone;) {
      ++end;
      const int32_t index = nodes_[static_cast<size_t>(node)].token;
      if (index == kNone) continue;
      const AddedToken* token = &tokens_[static_cast<size_t>(index)];
      if (!token->special || !straddles(literal, begin, end)) longest = Match{begin, end, token};
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

std::vector<AddedTokenMatcher::Segment> AddedTokenMatcher::split(std::string_view text, SpecialTokens special,
                                                                 std::span<const TextSpan> literal) const {
  std::vector<Segment> segments;
  size_t done = 0;  // text before it is in `segments`
  size_t from = 0;
  while (const std::optional<Match> match = tokens_.empty() ? std::nullopt : find(text, from, literal)) {
    const AddedToken& token = *match->token;
    from = match->end;
    if (token.special && special == SpecialTokens::kAsText) continue;
    if (token.special && shares_byte(literal, match->begin, match->end)) continue;
    if (token.single_word && is_inside_word(text, match->begin, match->end)) continue;
    const size_t begin = token.lstrip ? std::max(done, space_begin(text, done, match->begin)) : match->begin;
    const size_t end = token.rstrip ? space_end(text, std::max(done, match->end)) : match->end;
    if (end <= begin) continue;  // a token of white space that the token before has taken
    if (done < begin) segments.push_back({text.substr(done, begin - done), std::nullopt});
    segments.push_back({text.substr(begin, end - begin), token.id});
    done = end;  // may go back: a token of white space counts although the one before it has taken it (Gemma's "\n\n")
  }
  if (done < text.size()) segments.push_back({text.substr(done), std::nullopt});
  return segments;
}

}  // namespace headrace
