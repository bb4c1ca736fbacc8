#include "headrace/serve/ollama_response.h"

#include <array>
#include <ctime>
#include <utility>

#include "headrace/serve/call.h"
#include "headrace/text/json_string.h"

namespace headrace {

std::string time_text(int64_t seconds_since_1970) {
  const auto time = static_cast<std::time_t>(seconds_since_1970);
  std::tm utc{};
  gmtime_r(&time, &utc);
  std::array<char, 32> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &utc)};
}

OllamaResponse::OllamaResponse(Form form, OllamaRequest request, ResponseInfo info, std::string prompt,
                               std::vector<int32_t> ids, const Tokenizer& tokenizer)
    : Response(std::move(request), std::move(info), {std::move(ids)}, tokenizer),
      form_(form),
      prompt_(std::move(prompt)),
      shown_(prompt_) {}

void OllamaResponse::append_begin(const ReasoningStream::Parts& parts, std::string& out) const {
  out += R"({"model": )";
  append_json_string(info_.model, out);
  out += str(R"(, "created_at": ")", time_text(info_.created), '"');
  const bool is_chat = form_ == Form::kChat;
  out += is_chat ? R"(, "message": {"role": "assistant", "content": )" : R"(, "response": )";
  append_json_string(parts.content, out);
  if (!parts.reasoning.empty()) {
    out += R"(, "thinking": )";
    append_json_string(parts.reasoning, out);
  }
  if (is_chat) out += '}';
}

void OllamaResponse::append_done(const ResponseTimes& times, std::string& out) const {
  const auto nanoseconds = [](double seconds) { return static_cast<int64_t>(seconds * 1e9); };
  const Usage u = usage();
  out += str(R"(, "done": true, "done_reason": ")", name_of(finish_reason()), R"(", "total_duration": )",
             nanoseconds(times.total_s), R"(, "load_duration": 0, "prompt_eval_count": )", u.prompt_tokens,
             R"(, "prompt_eval_duration": )", nanoseconds(times.first_token_s), R"(, "eval_count": )",
             u.completion_tokens, R"(, "eval_duration": )", nanoseconds(times.total_s - times.first_token_s), '}');
}

std::string OllamaResponse::json(const ResponseTimes& times) const {
  std::string out;
  append_begin(SplitAnswer(prompt_).next(text_of(0, 0), SplitAnswer::Rest::kNone), out);
  append_done(times, out);
  return out;
}

void OllamaResponse::append_news(int32_t prompt, int32_t choice, std::string& out) {
  Choice& c = choice_at(prompt, choice);
  if (std::exchange(c.has_shown_end, c.has_ended)) return;
  const auto rest = c.has_ended ? SplitAnswer::Rest::kNone : SplitAnswer::Rest::kComes;
  const ReasoningStream::Parts parts = shown_.next(c.completion.text, rest);
  if (parts.content.empty() && parts.reasoning.empty()) return;
  append_begin(parts, out);
  out += ", \"done\": false}\n";
}

void OllamaResponse::append_end(const ResponseTimes& times, std::string& out) const {
  append_begin({}, out);
  append_done(times, out);
  out += '\n';
}

void OllamaResponse::append_error(const RequestError& error, std::string& out) const {
  out += ollama_error_json(error.what()) + '\n';
}

void OllamaResponse::append_ping(std::string& out) const {
  append_begin({}, out);
  out += ", \"done\": false}\n";
}

}  // namespace headrace
