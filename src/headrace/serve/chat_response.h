// Responses of OpenAI's chat completions API.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "headrace/serve/chat_request.h"
#include "headrace/serve/response.h"
#include "headrace/serve/split_answer.h"

namespace headrace {

// The "chat.completion" object, or its chunks.
class ChatResponse : public Response {
 public:
  // `chat`: the prompt. `tokenizer` is not owned.
  ChatResponse(ChatRequest request, ResponseInfo info, RenderedChat chat, const Tokenizer& tokenizer);

  std::string json(const ResponseTimes& times) const override;
  std::string_view stream_type() const override { return "text/event-stream"; }
  void append_news(int32_t prompt, int32_t choice, std::string& out) override;
  void append_end(const ResponseTimes& times, std::string& out) const override;
  void append_error(const RequestError& error, std::string& out) const override;

 private:
  struct Shown {
    SplitAnswer answer;
    bool has_role = false;
  };
  void append_message(const Choice& choice, std::string& out) const;
  void append_logprobs(const std::vector<Token>& tokens, std::string& out) const;
  void begin_chunk(size_t choice, std::string& out) const;
  void end_chunk(std::string& out) const;

  std::string prompt_;
  std::vector<Shown> shown_;  // of each choice
};

}  // namespace headrace
