// Responses of Ollama's API: lines of JSON.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "headrace/serve/ollama_request.h"
#include "headrace/serve/response.h"
#include "headrace/serve/split_answer.h"

namespace headrace {

class OllamaResponse : public Response {
 public:
  enum class Form : uint8_t { kChat, kGenerate };
  // `prompt`: the rendered conversation, or the text to continue; `ids`: its tokens. `tokenizer` is not owned.
  OllamaResponse(Form form, OllamaRequest request, ResponseInfo info, std::string prompt, std::vector<int32_t> ids,
                 const Tokenizer& tokenizer);

  std::string json(const ResponseTimes& times) const override;
  std::string_view stream_type() const override { return "application/x-ndjson"; }
  void append_news(int32_t prompt, int32_t choice, std::string& out) override;
  void append_end(const ResponseTimes& times, std::string& out) const override;
  void append_error(const RequestError& error, std::string& out) const override;
  void append_ping(std::string& out) const override;

 private:
  void append_begin(const ReasoningStream::Parts& parts, std::string& out) const;
  void append_done(const ResponseTimes& times, std::string& out) const;

  Form form_;
  std::string prompt_;
  SplitAnswer shown_;
};

// "2026-11-30T07:00:00Z"
std::string time_text(int64_t seconds_since_1970);

}  // namespace headrace
