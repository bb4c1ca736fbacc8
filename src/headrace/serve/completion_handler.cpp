#include <chrono>

#include "headrace/serve/api_handlers.h"
#include "headrace/serve/completion_response.h"
#include "headrace/serve/json_body.h"

namespace headrace {

ResponseHead response_head(std::string_view prefix, const std::string& model_name, const Call& call) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return {.id = str(prefix, call.request().id),
          .created = std::chrono::duration_cast<std::chrono::seconds>(now).count(),
          .model = model_name};
}

Answer answer_completion(const JsonNode& body, const ServedModel& model, Call& call) {
  CompletionRequest request = completion_request(body, model.defaults());
  ResponseHead head = response_head("cmpl-", model.name_for(request.model), call);
  Work work{.requests = generation_requests(request, model.tokenizer(), model.size())};
  std::vector<std::vector<int32_t>> prompts;
  for (const GenerationRequest& one : work.requests) prompts.push_back(one.prompt_ids);
  work.response =
      std::make_unique<CompletionResponse>(std::move(request), std::move(head), std::move(prompts), model.tokenizer());
  return work;
}

}  // namespace headrace
