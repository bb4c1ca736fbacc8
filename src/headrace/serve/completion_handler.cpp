#include <chrono>

#include "headrace/serve/api_handlers.h"
#include "headrace/serve/completion_response.h"
#include "headrace/serve/json_body.h"

namespace headrace {

ResponseInfo response_info(std::string_view prefix, const std::string& model_name, const Call& call) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return {.id = str(prefix, call.request().id),
          .created = std::chrono::duration_cast<std::chrono::seconds>(now).count(),
          .model = model_name};
}

Answer answer_completion(const JsonNode& body, const ServedModel& model, Call& call) {
  CompletionRequest request = completion_request(body, model.defaults());
  ResponseInfo info = response_info("cmpl-", model.name_for(request.model), call);
  Work work{.requests = generation_requests(request, model.tokenizer(), model.size())};
  std::vector<std::vector<int32_t>> prompts;
  for (const GenerationRequest& one : work.requests) prompts.push_back(one.prompt_ids);
  work.response =
      std::make_unique<CompletionResponse>(std::move(request), std::move(info), std::move(prompts), model.tokenizer());
  return work;
}

}  // namespace headrace
