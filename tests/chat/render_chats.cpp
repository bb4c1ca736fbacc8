// Renders the lines of standard input, {"template": "...", "bos_token": "...", "eos_token": "...", "input": {...}}, and
// writes one line of JSON for each: {"text": "..."} or {"error": "..."}. compare_templates.py runs it.
#include <iostream>

#include "headrace/core/error.h"
#include "headrace/text/json_string.h"
#include "json_values.h"

namespace {

std::string rendered(simdjson::dom::element line) {
  using headrace::json_string;
  const auto text = [&line](const char* name) { return std::string(std::string_view(line[name])); };
  try {
    const auto chat = headrace::ChatTemplate::from_text(text("template"), text("bos_token"), text("eos_token"));
    return "{\"text\": " + json_string(chat.render(headrace::testing::chat_input(line["input"])).text) + "}";
  } catch (const headrace::Error& error) {
    return "{\"error\": " + json_string(error.what()) + "}";
  }
}

}  // namespace

int main() {
  simdjson::dom::parser parser;
  for (std::string line; std::getline(std::cin, line);) std::cout << rendered(parser.parse(line)) << '\n';
}
