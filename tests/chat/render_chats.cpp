// Renders the lines of standard input, {"template": "...", "bos_token": "...", "eos_token": "...", "input": {...}}, and
// writes one line of JSON for each: {"text": "..."} or {"error": "..."}. make_chats.py runs it. With an argument N it
// renders each N times, and standard error has the time of one rendering.
#include <chrono>
#include <cstdlib>
#include <iostream>

#include "headrace/core/error.h"
#include "headrace/text/json_string.h"
#include "json_values.h"

namespace {

std::string rendered(simdjson::dom::element line, int times) {
  using headrace::json_string;
  const auto text = [&line](const char* name) { return std::string(std::string_view(line[name])); };
  try {
    const auto chat = headrace::ChatTemplate::from_text(text("template"), text("bos_token"), text("eos_token"));
    const headrace::ChatInput input = headrace::testing::chat_input(line["input"]);
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 1; i < times; ++i) chat.render(input);
    std::string out = chat.render(input).text;
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
    if (times > 1) std::cerr << time.count() / times << " us for " << out.size() << " bytes\n";
    return "{\"text\": " + json_string(out) + "}";
  } catch (const headrace::Error& error) {
    return "{\"error\": " + json_string(error.what()) + "}";
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int times = argc > 1 ? std::atoi(argv[1]) : 1;
  simdjson::dom::parser parser;
  for (std::string line; std::getline(std::cin, line);) std::cout << rendered(parser.parse(line), times) << '\n';
}
