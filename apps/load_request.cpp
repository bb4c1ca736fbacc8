#include "load_request.h"

#include "headrace/core/error.h"
#include "headrace/text/json_string.h"

namespace headrace::app {
namespace {

std::string messages_json(const std::vector<std::string>& texts) {
  std::string out;
  for (size_t i = 0; i < texts.size(); ++i) {
    out += i == 0 ? "[" : ", ";
    out += i % 2 == 0 ? R"({"role": "user", "content": )" : R"({"role": "assistant", "content": )";
    append_json_string(texts[i], out);
    out += '}';
  }
  return out + ']';
}

std::string prompt_json(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) all += text;
  return json_string(all);
}

// Random weights make bytes that are no text. Letters are read as the tokens that they were made as.
std::string letters_json() {
  std::string out;
  for (char letter = 'a'; letter <= 'z'; ++letter) out += str(out.empty() ? "" : ", ", '"', int{letter}, R"(": 100)");
  return R"(, "logit_bias": {)" + out + '}';
}

}  // namespace

std::string LoadHistory::body(std::string_view path, const Request& request) const {
  std::string out = R"({"model": )";
  append_json_string(request.model, out);
  out += path == kChatPath ? R"(, "messages": )" + messages_json(texts_) : R"(, "prompt": )" + prompt_json(texts_);
  out += str(R"(, "max_tokens": )", request.max_tokens, R"(, "temperature": 0, "ignore_eos": true)",
             R"(, "stream": true, "stream_options": {"include_usage": true})");
  if (request.only_letters) out += letters_json();
  return out + '}';
}

}  // namespace headrace::app
