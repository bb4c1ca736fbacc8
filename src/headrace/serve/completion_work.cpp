#include "headrace/serve/completion_response.h"
#include "headrace/serve/json_body.h"
#include "headrace/serve/work.h"

namespace headrace {

Work completion_work(const JsonNode& body, const ServedModel& model, ResponseInfo info) {
  CompletionRequest request = completion_request(body, model.defaults());
  info.model = model.name_for(request.model);
  Work work{.requests = generation_requests(request, model.tokenizer(), model.size())};
  std::vector<std::vector<int32_t>> prompts;
  for (const GenerationRequest& one : work.requests) prompts.push_back(one.prompt_ids);
  work.response =
      std::make_unique<CompletionResponse>(std::move(request), std::move(info), std::move(prompts), model.tokenizer());
  return work;
}

}  // namespace headrace
