#include "explain_text.h"

#include <algorithm>
#include <charconv>
#include <sstream>

#include "headrace/core/error.h"

namespace headrace::app {
namespace {

constexpr int64_t kLargest = int64_t{1} << 40;

std::string names_with(std::initializer_list<std::string_view> names, std::string_view ending) {
  std::string text;
  for (const std::string_view name : names)
    text += (text.empty() ? "" : ", ") + std::string(name) + std::string(ending);
  return text;
}

bool is_among(const std::string& name, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

int64_t size_of_key(const std::string& op, const std::string& key, std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  HR_REQUIRE(error == std::errc() && end == text.data() + text.size() && value >= 1 && value <= kLargest,
             ErrorCode::kInvalidArgument, "--explain ", op, ": ", key, " is '", text,
             "', expected a whole number from 1 to 2^40");
  return value;
}

}  // namespace

ExplainText::ExplainText(std::string_view text) {
  std::istringstream in{std::string(text)};
  in >> op_;
  for (std::string word; in >> word;) {
    const size_t equals = word.find('=');
    const bool is_new = equals == std::string::npos
                            ? words_.insert(word).second
                            : values_.emplace(word.substr(0, equals), word.substr(equals + 1)).second;
    HR_REQUIRE(is_new, ErrorCode::kInvalidArgument, "--explain ", op_, ": ", word.substr(0, equals),
               " is stated twice");
  }
}

void ExplainText::allow(std::initializer_list<std::string_view> keys,
                        std::initializer_list<std::string_view> words) const {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::kInvalidArgument, str("--explain ", op_, ": '", what, "' is unknown, expected ",
                                                 names_with(keys, "="), ", ", names_with(words, "")));
  };
  for (const auto& [key, value] : values_) {
    if (!is_among(key, keys)) refuse(str(key, "=", value));
  }
  for (const std::string& word : words_) {
    if (!is_among(word, words)) refuse(word);
  }
}

std::string ExplainText::value(const std::string& key, const std::string& fallback) const {
  const auto found = values_.find(key);
  return found != values_.end() ? found->second : fallback;
}

std::vector<int64_t> ExplainText::numbers(const std::string& key) const {
  const auto found = values_.find(key);
  HR_REQUIRE(found != values_.end(), ErrorCode::kInvalidArgument, "--explain ", op_, ": ", key, "= is missing");
  std::vector<int64_t> all;
  std::string_view text = found->second;
  while (true) {
    const size_t comma = text.find(',');
    all.push_back(size_of_key(op_, key, text.substr(0, comma)));
    if (comma == std::string_view::npos) return all;
    text.remove_prefix(comma + 1);
  }
}

int64_t ExplainText::number(const std::string& key) const {
  const std::vector<int64_t> all = numbers(key);
  HR_REQUIRE(all.size() == 1, ErrorCode::kInvalidArgument, "--explain ", op_, ": ", key, " has ", all.size(),
             " numbers, expected one");
  return all.front();
}

}  // namespace headrace::app
