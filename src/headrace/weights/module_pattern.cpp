#include "headrace/weights/module_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <utility>

#include "headrace/core/error.h"
#include "headrace/core/printable.h"

namespace headrace {
namespace {

struct FreeData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct FreeContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

PCRE2_SPTR units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

}  // namespace

struct ModulePattern::Code {
  struct FreeRegex {  // not of this file alone: a member's type is the same in every file
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  };
  std::string where;
  std::unique_ptr<pcre2_code, FreeRegex> compiled;
};

ModulePattern::ModulePattern(std::string_view regex, std::string where) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto code = std::make_shared<Code>();
  code->where = std::move(where);
  code->compiled.reset(
      pcre2_compile(units(regex), regex.size(), PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr));
  HR_REQUIRE(code->compiled, ErrorCode::kModelFile, code->where, " is '", printable(regex),
             "', expected a regular expression: it does not compile at byte ", offset);
  code_ = std::move(code);
}

bool ModulePattern::match(std::string_view module) const {
  constexpr uint32_t kMostSteps = 1'000'000;  // no name comes near; a hostile expression does
  const std::unique_ptr<pcre2_match_data, FreeData> data(pcre2_match_data_create(1, nullptr));
  const std::unique_ptr<pcre2_match_context, FreeContext> context(pcre2_match_context_create(nullptr));
  HR_REQUIRE(data && context, ErrorCode::kOutOfMemory, code_->where, ": no memory to match");
  pcre2_set_match_limit(context.get(), kMostSteps);
  const int rc = pcre2_match(code_->compiled.get(), units(module), module.size(), 0, PCRE2_ANCHORED | PCRE2_ENDANCHORED,
                             data.get(), context.get());
  HR_REQUIRE(rc >= 0 || rc == PCRE2_ERROR_NOMATCH, ErrorCode::kModelFile, code_->where,
             ": the regular expression takes too long on '", printable(module), "'");
  return rc >= 0;
}

}  // namespace headrace
