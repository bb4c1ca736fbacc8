#include "headrace/serve/api_handlers.h"
#include "headrace/serve/chat_response.h"
#include "headrace/serve/completion_request.h"
#include "headrace/serve/json_body.h"

namespace headrace {

Answer answer_chat(const JsonNode& body, const ServedModel& model, Call& call) {
  ChatRequest request = chat_request(body, model.defaults());
  ResponseInfo info = response_info("chatcmpl-", model.name_for(request.model), call);
  RenderedChat chat = rendered(request.input, model);
  Work work;
  work.requests.push_back(generation_request(request, chat.ids));
  work.response =
      std::make_unique<ChatResponse>(std::move(request), std::move(info), std::move(chat), model.tokenizer());
  return work;
}

}  // namespace headrace
