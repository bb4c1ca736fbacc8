// Writes the JSON object that a config.json would hold. Included by the readers of other formats alone.
#pragma once
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "headrace/core/error.h"

namespace headrace {

// Keys and texts are ASCII without quotes and backslashes.
class JsonMembers {
 public:
  void add_json(std::string_view key, std::string_view json) {
    members_ += str(members_.empty() ? "" : ",", '"', key, "\":", json);
  }
  void add(std::string_view key, int64_t value) { add_json(key, str(value)); }
  void add(std::string_view key, std::string_view text) { add_json(key, str('"', text, '"')); }
  void add_flag(std::string_view key, bool value) { add_json(key, value ? "true" : "false"); }
  void add_number(std::string_view key, double value) { add_json(key, number_text(value)); }
  template <class Values, class Text>
  void add_array(std::string_view key, const Values& values, const Text& json_of) {
    std::string items;
    for (const auto& value : values) items += str(items.empty() ? "" : ",", json_of(value));
    add_json(key, str('[', items, ']'));
  }
  std::string object() const { return str('{', members_, '}'); }

  // The shortest digits that read back as `value`, which is finite: of a float32 if it is one, as in the text that it
  // came from ("1e-06").
  static std::string number_text(double value) {
    std::array<char, 32> digits = {};
    char *const begin = digits.data(), *const end = begin + digits.size();
    const bool fits = std::abs(value) <= static_cast<double>(std::numeric_limits<float>::max());
    const float narrow = fits ? static_cast<float>(value) : 0;
    const auto written = double{narrow} == value ? std::to_chars(begin, end, narrow) : std::to_chars(begin, end, value);
    return {begin, written.ptr};
  }

 private:
  std::string members_;
};

}  // namespace headrace
