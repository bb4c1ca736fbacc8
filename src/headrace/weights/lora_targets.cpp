#include "headrace/weights/lora_targets.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "headrace/weights/mapped_file.h"

namespace headrace {
namespace {

struct FreeData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct FreeContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

PCRE2_SPTR units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

bool is_all_linear(const JsonValue* targets) {
  return targets != nullptr && targets->is_string() && targets->as_string() == "all-linear";
}

std::vector<std::string_view> parts_of(std::string_view module) {
  std::vector<std::string_view> parts;
  for (size_t dot = module.find('.'); dot != module.npos; dot = module.find('.')) {
    parts.push_back(module.substr(0, dot));
    module.remove_prefix(dot + 1);
  }
  parts.push_back(module);
  return parts;
}

std::optional<int64_t> number_of(std::string_view part) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), number);
  const bool whole = error == std::errc() && end == part.data() + part.size() && number >= 0;
  return whole ? std::optional(number) : std::nullopt;
}

// The last number that something stands behind, in front of which is one of `patterns`, as in PEFT.
std::optional<int64_t> layer_of(std::string_view module, const std::vector<std::string>& patterns) {
  const std::vector<std::string_view> parts = parts_of(module);
  for (size_t i = parts.size() - 1; i-- > 1;) {
    const auto number = number_of(parts[i]);
    const bool fits = patterns.empty() || std::ranges::find(patterns, parts[i - 1]) != patterns.end();
    if (number && fits) return number;
  }
  return std::nullopt;
}

std::vector<std::string> texts_of(const JsonValue* value) {
  if (value == nullptr) return {};
  return value->is_string() ? std::vector{value->as_string()} : value->as_strings();
}

std::set<int64_t> numbers_of(const JsonValue* value) {
  if (value == nullptr) return {};
  if (value->is_int()) return {value->as_int()};
  const std::vector<int64_t> list = value->as_ints();
  return {list.begin(), list.end()};
}

}  // namespace

struct LoraTargets::Names::Code {
  struct FreeRegex {
    void operator()(pcre2_code* regex) const { pcre2_code_free(regex); }
  };
  std::string where;
  std::unique_ptr<pcre2_code, FreeRegex> compiled;
};

LoraTargets::Names::Names(const JsonValue* value) {
  if (value == nullptr || is_all_linear(value)) return;
  if (!value->is_string()) {
    ends_ = value->as_strings();
    return;
  }
  const std::string& regex = value->as_string();
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto code = std::make_shared<Code>();
  code->where = value->where();
  code->compiled.reset(
      pcre2_compile(units(regex), regex.size(), PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr));
  HR_REQUIRE(code->compiled, ErrorCode::kModelFile, value->where(), " is '", printable(regex),
             "', expected a regular expression: it does not compile at byte ", offset);
  code_ = std::move(code);
}

bool LoraTargets::Names::match(std::string_view module) const {
  const auto ends = [module](const std::string& name) { return module == name || module.ends_with("." + name); };
  if (!code_) return std::ranges::any_of(ends_, ends);
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

LoraTargets::LoraTargets(const JsonValue& config)
    : all_linear_(is_all_linear(config.find("target_modules"))),
      targets_(config.find("target_modules")),
      excluded_(config.find("exclude_modules")),
      layers_(numbers_of(config.find("layers_to_transform"))),
      patterns_(texts_of(config.find("layers_pattern"))) {}

bool LoraTargets::in_layers(std::string_view module) const {
  if (layers_.empty()) return true;
  const auto layer = layer_of(module, patterns_);
  return layer && layers_.contains(*layer);
}

bool LoraTargets::contains(std::string_view module) const {
  if (excluded_.match(module)) return false;
  if (all_linear_) return layer_of(module, {}) && !module.ends_with(".gate");
  return targets_.match(module) && in_layers(module);
}

}  // namespace headrace
