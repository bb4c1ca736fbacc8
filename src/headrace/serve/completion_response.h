// Responses of OpenAI's completions API.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/serve/completion_request.h"
#include "headrace/serve/response.h"

namespace headrace {

// The "text_completion" object, or its chunks.
class CompletionResponse : public Response {
 public:
  // `prompts`: the ids of generation_requests(). `tokenizer` is not owned.
  CompletionResponse(CompletionRequest request, ResponseInfo info, std::vector<std::vector<int32_t>> prompts,
                     const Tokenizer& tokenizer);

  std::string json(const ResponseTimes& times) const override;
  std::string_view stream_type() const override { return "text/event-stream"; }
  void append_news(int32_t prompt, int32_t choice, std::string& out) override;
  void append_end(const ResponseTimes& times, std::string& out) const override;
  void append_error(const RequestError& error, std::string& out) const override;

 private:
  void append_choice(size_t prompt, size_t choice, std::string& out) const;
  std::string echoed(size_t prompt) const;  // the prompt's text
  std::vector<Token> shown_tokens(const Prompt& prompt, const Choice& choice, size_t from) const;
  void append_top(const Token& token, std::string& out) const;
  void append_logprobs(const std::vector<Token>& tokens, int64_t offset, std::string& out) const;
  void append_prompt_logprobs(const Prompt& prompt, std::string& out) const;
  std::string_view reason_of(const Choice& choice) const;

  std::vector<CompletionRequest::Prompt> texts_;
  bool echo_;
  std::optional<int32_t> prompt_logprobs_;
  std::vector<int64_t> offsets_;  // of the next token in the text of each choice, in characters
};

}  // namespace headrace
