// Requests of Ollama's API: /api/chat and /api/generate.
#pragma once
#include <string>
#include <vector>

#include "headrace/chat/chat_template.h"
#include "headrace/serve/api_request.h"

namespace headrace {

class JsonNode;

struct OllamaRequest : ApiRequest {
  ChatInput input;             // of /api/chat
  std::string prompt, system;  // of /api/generate
  bool raw = false;            // the prompt is no message
};

// Read a body. Unknown fields and options are ignored; those that would change the text are refused. Throw RequestError
// 400.
OllamaRequest ollama_chat_request(const JsonNode& body, const SamplingParams& defaults);
OllamaRequest ollama_generate_request(const JsonNode& body, const SamplingParams& defaults);
std::vector<FieldDescription> ollama_chat_fields();
std::vector<FieldDescription> ollama_generate_fields();
// "name" for "name:latest".
std::string without_tag(const std::string& model);

}  // namespace headrace
