// Handlers of the bodies of requests. Each runs on a worker's thread and throws RequestError.
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

// OpenAI's.
Answer answer_completion(const JsonNode& body, const ServedModel& model, Call& call);
Answer answer_chat(const JsonNode& body, const ServedModel& model, Call& call);
// vLLM's.
Answer answer_tokenize(const JsonNode& body, const ServedModel& model, Call& call);
Answer answer_detokenize(const JsonNode& body, const ServedModel& model, Call& call);
std::string tokenizer_info_json(const ServedModel& model);
std::vector<FieldDescription> tokenize_fields();
std::vector<FieldDescription> detokenize_fields();
// Ollama's.
Answer answer_ollama_chat(const JsonNode& body, const ServedModel& model, Call& call);
Answer answer_ollama_generate(const JsonNode& body, const ServedModel& model, Call& call);
Answer answer_ollama_show(const JsonNode& body, const ServedModel& model, Call& call);
std::string ollama_tags_json(const ServedModel& model);
std::string ollama_running_json(const ServedModel& model);

// Returns the id, which begins with `prefix`, and the time of a response to `call`.
ResponseInfo response_info(std::string_view prefix, const Call& call);

}  // namespace headrace
