// What the server makes of the bodies of requests. Each runs on a worker's thread and throws RequestError.
#pragma once
#include <string>
#include <variant>

#include "headrace/serve/call.h"
#include "headrace/serve/request_runner.h"
#include "headrace/serve/served_model.h"

namespace headrace {

class JsonNode;

using Answer = std::variant<Work, std::string>;  // work for the engine, or an answer in JSON
using ApiHandler = Answer (*)(const JsonNode& body, const ServedModel& model, Call& call);

Answer answer_completion(const JsonNode& body, const ServedModel& model, Call& call);  // OpenAI's

// Returns the head of a response to `call`: its id begins with `prefix`.
ResponseHead response_head(std::string_view prefix, const std::string& model_name, const Call& call);

}  // namespace headrace
