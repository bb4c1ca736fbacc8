#include "number_options.h"

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

}  // namespace

void check_numbers(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name();  // "INT", or "INT:INT in [1 - 16]"
    if (type.starts_with("INT")) option->check(integer<int32_t>());
    if (type.starts_with("UINT")) option->check(integer<uint64_t>());
    if (type.starts_with("FLOAT")) option->check(real());
  }
  for (CLI::App* command : app.get_subcommands({})) check_numbers(*command);
}

}  // namespace headrace::app
