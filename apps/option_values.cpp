#include "option_values.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <charconv>
#include <limits>

namespace headrace::app {
namespace {

template <class T>
bool is_number(const std::string& text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

template <class T>
CLI::Validator integer() {
  return {[](const std::string& text) {
            if (is_number<T>(text)) return std::string();
            return fmt::format("is '{}', expected an integer from {} to {}", text, std::numeric_limits<T>::min(),
                               std::numeric_limits<T>::max());
          },
          ""};
}

// What overflows is a number too: whoever takes it knows its range.
CLI::Validator real() {
  return {[](const std::string& text) {
            float value = 0;
            return CLI::detail::lexical_cast(text, value) ? "" : fmt::format("is '{}', expected a number", text);
          },
          ""};
}

CLI::Validator not_empty(const char* expected) {
  return {[expected](const std::string& text) {
            return text.empty() ? fmt::format("is empty, expected {}", expected) : std::string();
          },
          ""};
}

}  // namespace

void refuse_standard_output(CLI::Option& option) {
  option.check({[](const std::string& text) {
                  return text == "-" ? "is -, expected a file: standard output has the result" : std::string();
                },
                ""});
}

void check_values(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name();  // "INT", or "INT:INT in [1 - 16]"
    // In front of the checks of ranges, which would call a word out of range: CLI11 puts what transforms there.
    if (type.starts_with("INT")) option->transform(integer<int32_t>());
    if (type.starts_with("UINT")) option->transform(integer<uint64_t>());
    if (type.starts_with("FLOAT")) option->transform(real());
    if (type == kFile) option->check(not_empty("a file"));
    if (type == kDirectory) option->check(not_empty("a directory"));
    if (type == kName) option->check(not_empty("a name"));
    if (type == kModel) option->check(not_empty("a directory or a name"));
  }
  for (CLI::App* command : app.get_subcommands({})) check_values(*command);
}

}  // namespace headrace::app
