#include "headrace/serve/api_handlers.h"

#include <chrono>
#include <utility>

namespace headrace {

ResponseInfo response_info(std::string_view prefix, const Call& call) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return {.id = str(prefix, call.request().id),
          .created = std::chrono::duration_cast<std::chrono::seconds>(now).count()};
}

Answer answer_completion(const JsonNode& body, const ServedModel& model, Call& call) {
  return completion_work(body, model, response_info("cmpl-", call));
}

Answer answer_chat(const JsonNode& body, const ServedModel& model, Call& call) {
  return chat_work(body, model, response_info("chatcmpl-", call));
}

}  // namespace headrace
