// A request's work for the engine, and its response.
#pragma once
#include <memory>
#include <vector>

#include "headrace/llm/generation_request.h"
#include "headrace/serve/response.h"
#include "headrace/serve/served_model.h"

namespace headrace {

class JsonNode;

struct Work {
  std::vector<GenerationRequest> requests;  // one for each prompt of the response
  std::unique_ptr<Response> response;
};

// Read the body of a request of /v1/completions, or of /v1/chat/completions. `info` gets the model's name. Throw
// RequestError.
Work completion_work(const JsonNode& body, const ServedModel& model, ResponseInfo info);
Work chat_work(const JsonNode& body, const ServedModel& model, ResponseInfo info);

}  // namespace headrace
