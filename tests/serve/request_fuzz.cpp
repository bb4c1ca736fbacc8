// Bodies of requests, drawn at random and damaged: a reader takes them, or refuses them with a status below 500.
#include <array>
#include <functional>
#include <random>
#include <string>

#include "headrace/core/printable.h"
#include "headrace/serve/chat_request.h"
#include "headrace/serve/completion_request.h"
#include "headrace/serve/json_body.h"
#include "headrace/serve/ollama_request.h"
#include "headrace/text/utf8.h"
#include "headrace/weights/config_file.h"
#include "support/fuzz.h"

namespace headrace {
namespace {

constexpr std::array kBodies = {
    R"({"model": "m", "prompt": "Once", "max_tokens": 7, "temperature": 1, "top_p": 0.5, "n": 2, "logprobs": 3})",
    R"({"prompt": [1, 2, 3], "stop": ["a", "b"], "logit_bias": {"5": -100, "7": 1.5}, "seed": 9, "stream": true})",
    R"({"prompt": [[1], [2, 3]], "stream": true, "stream_options": {"include_usage": true}, "headrace": {"explain_cache": true}})",
    R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": [1, 2.5, null]}"}}]}], "top_logprobs": 2, "logprobs": true})",
    R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "\ud83d\ude00"}]}], "chat_template_kwargs": {"enable_thinking": false}, "response_format": {"type": "text"}})",
    R"({"model": "m:latest", "prompt": "a", "options": {"temperature": 0.5, "stop": ["x"], "num_predict": -1, "seed": -1}, "think": "low", "format": ""})",
};
constexpr std::array kPieces = {"{",
                                "}",
                                "[",
                                "]",
                                "\"",
                                ",",
                                ":",
                                "null",
                                "true",
                                "-1",
                                "1e999",
                                "NaN",
                                "18446744073709551616",
                                "\\ud800",
                                "\\u0000",
                                "\xff",
                                "\xc0\x80",
                                "{\"a\":",
                                "\"n\": 3, ",
                                "0.1",
                                " ",
                                "\"stop\": "};

std::string damaged(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&random](size_t n) { return static_cast<size_t>(random() % n); };
  std::string text = kBodies[below(kBodies.size())];
  for (size_t i = below(6); i > 0; --i) {
    const size_t at = below(text.size() + 1);
    switch (below(5)) {
      case 0: text.insert(at, kPieces[below(kPieces.size())]); break;
      case 1: text.erase(at, 1 + below(8)); break;
      case 2: text.insert(at, text.substr(below(text.size() + 1), 1 + below(40))); break;
      case 3:
        if (at < text.size()) text[at] = static_cast<char>(random());
        break;
      default: {
        const std::string other = kBodies[below(kBodies.size())];
        text.insert(at, other.substr(below(other.size()), 1 + below(60)));
      }
    }
  }
  return text;
}

// Returns what is wrong with how `read` took the text.
std::string wrong_with(const std::function<void(const JsonNode&)>& read, const std::string& text) {
  try {
    read(JsonBody(text, "the body").root());
    return "";
  } catch (const RequestError& error) {
    if (error.status() >= 500) return str("status ", error.status(), ": ", error.what());
    if (!is_valid_utf8(error.json())) return str("not UTF-8: ", error.json());
    JsonValue::parse(error.json(), "error");
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

std::string wrong_with(const std::string& text) {
  const SamplingParams defaults;
  for (const std::function<void(const JsonNode&)>& read : std::initializer_list<std::function<void(const JsonNode&)>>{
           [&](const JsonNode& body) { completion_request(body, defaults); },
           [&](const JsonNode& body) { chat_request(body, defaults); },
           [&](const JsonNode& body) { ollama_chat_request(body, defaults); },
           [&](const JsonNode& body) { ollama_generate_request(body, defaults); }}) {
    const std::string wrong = wrong_with(read, text);
    if (!wrong.empty()) return wrong;
  }
  return "";
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  using headrace::testing_support::FuzzArguments;
  using headrace::testing_support::FuzzCase;
  return headrace::testing_support::fuzz_main("request_fuzz", argc, argv, [](uint64_t seed, const FuzzArguments&) {
    const std::string text = headrace::damaged(seed);
    return FuzzCase{headrace::printable(text, 60), [text] { return headrace::wrong_with(text); }};
  });
}
