// The text of `headrace doctor --explain`: an op's name, then what its call is: "gemm m=8 n=9728 k=2560 norm".
#pragma once
#include <cstdint>
#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "headrace/core/error.h"

namespace headrace::app {

class ExplainText {
 public:
  // Error kInvalidArgument: a value or a word that is stated twice.
  explicit ExplainText(std::string_view text);

  const std::string& op() const { return op_; }
  // Error kInvalidArgument, which lists what the op reads: a key or a word that is none of these.
  void allow(std::initializer_list<std::string_view> keys, std::initializer_list<std::string_view> words) const;
  bool has(const std::string& word) const { return words_.contains(word); }
  // Returns the value of a key, or `fallback`.
  std::string value(const std::string& key, const std::string& fallback) const;
  // Error kInvalidArgument: absent, or not a whole number from 1 to 2^40.
  int64_t number(const std::string& key) const;
  std::vector<int64_t> numbers(const std::string& key) const;  // separated by commas

 private:
  std::string op_;
  std::map<std::string, std::string> values_;  // of key=value
  std::set<std::string> words_;                // without "="
};

// Returns the value of `key` that `options` maps to a T; the first one is the default. Error kInvalidArgument for
// another value.
template <class T>
T chosen(const ExplainText& text, const std::string& key,
         std::initializer_list<std::pair<std::string_view, T>> options) {
  const std::string value = text.value(key, std::string(options.begin()->first));
  std::string names;
  for (const auto& [name, option] : options) {
    if (name == value) return option;
    names += (names.empty() ? "" : ", ") + std::string(name);
  }
  throw Error(ErrorCode::kInvalidArgument,
              str("--explain ", text.op(), ": ", key, " is '", value, "', expected one of: ", names));
}

}  // namespace headrace::app
