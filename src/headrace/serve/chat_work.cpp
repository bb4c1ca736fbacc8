#include "headrace/serve/chat_response.h"
#include "headrace/serve/completion_request.h"
#include "headrace/serve/json_body.h"
#include "headrace/serve/work.h"

namespace headrace {

Work chat_work(const JsonNode& body, const ServedModel& model, ResponseInfo info) {
  ChatRequest request = chat_request(body, model.defaults());
  info.model = model.name_for(request.model);
  RenderedChat chat = rendered(request.input, model);
  Work work;
  work.requests.push_back(generation_request(request, chat.ids));
  work.response =
      std::make_unique<ChatResponse>(std::move(request), std::move(info), std::move(chat), model.tokenizer());
  return work;
}

}  // namespace headrace
