#include "option_values.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>
#include <optional>
#include <string_view>

namespace headrace::app {
namespace {

template <class T>
std::optional<T> number_of(const std::string& text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

// Returns the sentence about a value that was not expected. A value that reads as an option was meant as one.
std::string not_expected(const std::string& text, std::string_view expected) {
  const bool option = text.size() > 1 && text[0] == '-' && text.find_first_of("0123456789.") != 1;
  return fmt::format("{} '{}', expected {}", option ? "is followed by" : "is", text, expected);
}

constexpr std::string_view kSizeExpected = "bytes from 1, or as 4G, 512M or 64K";

std::optional<int64_t> bytes_of(std::string text) {
  constexpr std::string_view kUnits = "KMGT", kDecimal = "kmgt";
  int64_t factor = 1;
  if (!text.empty()) {
    for (const auto& [units, base] : {std::pair(kUnits, 1024), std::pair(kDecimal, 1000)}) {
      const size_t power = units.find(text.back());
      for (size_t i = 0; power != units.npos && i <= power; ++i) factor *= base;
    }
    if (factor > 1) text.pop_back();
  }
  const auto number = number_of<int64_t>(text);
  const bool fits = number && *number >= 1 && *number <= std::numeric_limits<int64_t>::max() / factor;
  return fits ? std::optional(*number * factor) : std::nullopt;
}

constexpr std::string_view kTimeExpected = "seconds, or as 30s, 500ms, 2m or 1h; 0: none";

std::optional<int64_t> milliseconds_of(std::string_view text) {
  constexpr int64_t kMost = int64_t{1} << 40;
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0 || number > kMost) return std::nullopt;
  const std::string_view unit(end, text.data() + text.size());
  for (const auto& [name, factor] :
       {std::pair<std::string_view, int64_t>{"", 1000}, {"s", 1000}, {"ms", 1}, {"m", 60'000}, {"h", 3'600'000}}) {
    if (unit == name) return number * factor;
  }
  return std::nullopt;
}

template <class T>
std::string integers(T least, T most) {
  return fmt::format("an integer from {} to {}", least, most);
}

template <class T>
CLI::Validator integer() {
  return {[](const std::string& text) {
            if (number_of<T>(text)) return std::string();
            const bool digits = text.find_first_not_of("+-0123456789") == text.npos && !text.empty();
            constexpr T kLeast = std::numeric_limits<T>::min(), kMost = std::numeric_limits<T>::max();
            return not_expected(text, digits ? integers(kLeast, kMost) : "an integer");
          },
          ""};
}

// A number that overflows is accepted here: its range is checked later.
CLI::Validator real() {
  return {[](const std::string& text) {
            float value = 0;
            return CLI::detail::lexical_cast(text, value) ? "" : not_expected(text, "a number");
          },
          ""};
}

// "a, b or c" of "a,b,c".
std::string listed(std::string names) {
  const size_t last = names.rfind(',');
  if (last != names.npos) names.replace(last, 1, " or ");
  for (size_t at = names.find(','); at != names.npos; at = names.find(',', at + 2)) names.replace(at, 1, ", ");
  return names;
}

// One of the names that the option lists, which the option itself checks behind this, in other words.
CLI::Validator one_of(const std::string& names) {
  return {[names](const std::string& text) {
            const bool found = text.find(',') == text.npos && ("," + names + ",").find("," + text + ",") != names.npos;
            return found ? "" : not_expected(text, listed(names));
          },
          ""};
}

CLI::Validator not_empty(const std::string& expected) {
  return {[expected](const std::string& text) {
            return text.empty() ? fmt::format("is empty, expected {}", expected) : std::string();
          },
          ""};
}

// Returns the kind of value that the named type stands for: "a file", "an integer".
std::string_view expected_of_type(std::string_view type) {
  if (type == kSize) return kSizeExpected;
  if (type == kTime) return kTimeExpected;
  if (type == kFile) return "a file";
  if (type == kDirectory) return "a directory";
  if (type == kName) return "a name";
  if (type == kModel) return "a directory or a name";
  if (type.starts_with("INT") || type.starts_with("UINT")) return "an integer";
  return type.starts_with("FLOAT") ? "a number" : "a text";
}

}  // namespace

template <class T>
CLI::Validator integer_in(T least, T most, std::string expected) {
  if (expected.empty()) expected = integers(least, most);
  const auto check = [least, most, expected](const std::string& text) {
    const std::optional<T> value = number_of<T>(text);
    return value && *value >= least && *value <= most ? "" : not_expected(text, expected);
  };
  return {check, expected};
}
template CLI::Validator integer_in(int32_t, int32_t, std::string);
template CLI::Validator integer_in(uint64_t, uint64_t, std::string);

CLI::Validator number_in(double least, double most) {
  const std::string expected = fmt::format("a number from {} to {}", least, most);
  const auto check = [=](const std::string& text) {
    double value = 0;
    const bool number = CLI::detail::lexical_cast(text, value);
    return number && value >= least && value <= most ? "" : not_expected(text, expected);
  };
  return {check, expected};
}

CLI::Validator memory_size() {
  return {[](std::string& text) {
            const auto bytes = bytes_of(text);
            if (!bytes) return not_expected(text, kSizeExpected);
            text = std::to_string(*bytes);
            return std::string();
          },
          ""};
}

CLI::Validator duration() {
  return {[](std::string& text) {
            const auto milliseconds = milliseconds_of(text);
            if (!milliseconds) return not_expected(text, kTimeExpected);
            text = std::to_string(*milliseconds);
            return std::string();
          },
          ""};
}

std::string choices_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t begin = type.find(":{"), end = type.rfind('}');
  if (begin == std::string::npos || end == std::string::npos) return "";
  return type.substr(begin + 2, end - begin - 2);
}

std::string expected_value(const CLI::Option& option) {
  const std::string choices = choices_of(option), type = option.get_type_name();
  if (!choices.empty()) return listed(choices);
  const size_t colon = type.find(':');  // behind it stands what a check of a range expects
  return colon == type.npos ? std::string(expected_of_type(type)) : type.substr(colon + 1);
}

void refuse_standard_output(CLI::Option& option) {
  option.check({[](const std::string& text) {
                  return text == "-" ? "is -, expected a file: standard output has the result" : std::string();
                },
                ""});
}

void check_values(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name(), choices = choices_of(*option);
    // In front of CLI11's check, whose words are others: it puts what transforms there.
    if (!choices.empty()) option->transform(one_of(choices));
    if (type == "INT") option->transform(integer<int32_t>());
    if (type == "UINT") option->transform(integer<uint64_t>());
    if (type == "FLOAT") option->transform(real());
    for (const char* path : {kFile, kDirectory, kName, kModel}) {
      if (type == path) option->check(not_empty(std::string(expected_of_type(path))));
    }
  }
  for (CLI::App* command : app.get_subcommands({})) check_values(*command);
}

}  // namespace headrace::app
