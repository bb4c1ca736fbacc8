#include "headrace/text/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "headrace/core/error.h"
#include "headrace/core/printable.h"
#include "headrace/text/pattern_syntax.h"
#include "headrace/text/utf8.h"

namespace headrace {
namespace {

template <auto kFree>
struct Free {
  void operator()(auto* p) const { kFree(p); }
};
using MatchDataPtr = std::unique_ptr<pcre2_match_data, Free<pcre2_match_data_free>>;
using MatchContextPtr = std::unique_ptr<pcre2_match_context, Free<pcre2_match_context_free>>;

std::string message_of(int error) {
  std::string text(256, '\0');
  const int size = pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(text.data()), text.size());
  text.resize(static_cast<size_t>(std::max(size, 0)));
  return text;
}

uint32_t step_limit(size_t text_size) {
  constexpr uint64_t kBase = 1'000'000, kPerByte = 64;
  return static_cast<uint32_t>(std::min<uint64_t>(kBase + kPerByte * text_size, std::numeric_limits<uint32_t>::max()));
}

}  // namespace

struct Pattern::Code {
  struct FreeRegex {  // a type of this file alone would make a member's type differ between files
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  };
  std::string regex;  // as it was given, for messages
  std::unique_ptr<pcre2_code, FreeRegex> compiled;
};

Pattern::~Pattern() = default;
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;

Pattern::Pattern(std::string_view regex) : code_(std::make_unique<Code>()) {
  code_->regex = regex;
  const std::string source = pcre2_syntax(regex);
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_->compiled.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(source.data()), source.size(),
                                      PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr));
  HR_REQUIRE(code_->compiled, ErrorCode::kModelFile, "pattern '", printable(regex),
             "' does not compile: ", message_of(error));
  // This fails if the system forbids writable code pages. PCRE2 then interprets the pattern: same matches, slower.
  pcre2_jit_compile(code_->compiled.get(), PCRE2_JIT_COMPLETE);
}

void Pattern::split(std::string_view text, std::vector<std::string_view>& pieces) const {
  const MatchDataPtr data(pcre2_match_data_create(1, nullptr));
  const MatchContextPtr context(pcre2_match_context_create(nullptr));
  HR_REQUIRE(data && context, ErrorCode::kOutOfMemory, "pattern '", printable(code_->regex), "': no memory to match");
  pcre2_set_match_limit(context.get(), step_limit(text.size()));
  size_t done = 0;  // text before it is in `pieces`
  for (size_t from = 0; from < text.size();) {
    // The text is valid; without this flag every call would check all of it again.
    const int rc = pcre2_match(code_->compiled.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                               PCRE2_NO_UTF_CHECK, data.get(), context.get());
    if (rc == PCRE2_ERROR_NOMATCH) break;
    HR_REQUIRE(rc >= 0, ErrorCode::kModelFile, "text: pattern '", printable(code_->regex), "' stops at byte ", from,
               " of ", text.size(), ": ", message_of(rc));
    const size_t begin = pcre2_get_ovector_pointer(data.get())[0], end = pcre2_get_ovector_pointer(data.get())[1];
    if (begin > done) pieces.push_back(text.substr(done, begin - done));
    if (end > begin) pieces.push_back(text.substr(begin, end - begin));
    done = from = end;
    if (end == begin && end < text.size()) next_code_point(text, from);  // an empty match splits, and must not repeat
  }
  if (done < text.size()) pieces.push_back(text.substr(done));
}

}  // namespace headrace
