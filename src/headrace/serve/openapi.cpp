#include "headrace/serve/openapi.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "headrace/serve/api_handlers.h"
#include "headrace/serve/chat_request.h"
#include "headrace/serve/completion_request.h"
#include "headrace/serve/decoding_fields.h"
#include "headrace/serve/ollama_request.h"
#include "headrace/text/json_string.h"

namespace headrace {
namespace {

// Schemas of responses. Objects may have further members.
constexpr std::string_view kSchemas = R"(
"Error": {"type": "object", "required": ["error"], "properties": {"error": {"type": "object",
  "required": ["message", "type", "param", "code"], "properties": {"message": {"type": "string"},
  "type": {"type": "string"}, "param": {"type": ["string", "null"]},
  "code": {"type": ["string", "integer", "null"]}}}}},
"Loading": {"type": "object", "required": ["error"], "properties": {"error": {"type": "object",
  "required": ["message", "type", "code"], "properties": {"message": {"type": "string"}, "type": {"type": "string"},
  "code": {"type": ["string", "integer", "null"]}}}}},
"OllamaError": {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}},
"Status": {"type": "object", "required": ["status"], "properties": {"status": {"const": "ok"}}},
"Version": {"type": "object", "required": ["version"], "properties": {"version": {"type": "string"}}},
"Usage": {"type": "object", "required": ["prompt_tokens", "completion_tokens", "total_tokens"], "properties": {
  "prompt_tokens": {"type": "integer"}, "completion_tokens": {"type": "integer"}, "total_tokens": {"type": "integer"},
  "prompt_tokens_details": {"type": "object", "properties": {"cached_tokens": {"type": "integer"}}}}},
"Own": {"type": "object", "properties": {"cache": {"type": "object", "properties": {"why": {"enum": ["none",
  "not_shared", "new_text", "other_text", "page_evicted", "state_missing", "state_evicted"]},
  "cached_tokens": {"type": "integer"}, "matching_tokens": {"type": "integer"}, "computed_tokens": {"type": "integer"},
  "explanation": {"type": "string"}, "own_text": {"type": "string"}}}}},
"FinishReason": {"enum": ["stop", "length"]},
"Completion": {"type": "object", "required": ["id", "object", "created", "model", "choices", "usage"], "properties": {
  "id": {"type": "string"}, "object": {"const": "text_completion"}, "created": {"type": "integer"},
  "model": {"type": "string"}, "choices": {"type": "array", "items": {"type": "object",
  "required": ["index", "text", "logprobs", "finish_reason"], "properties": {"index": {"type": "integer"},
  "text": {"type": "string"}, "finish_reason": {"$ref": "#/components/schemas/FinishReason"},
  "headrace": {"$ref": "#/components/schemas/Own"}, "logprobs": {"anyOf": [{"type": "null"}, {"type": "object",
  "properties": {"tokens": {"type": "array", "items": {"type": "string"}}, "token_logprobs": {"type": "array",
  "items": {"type": ["number", "null"]}}, "top_logprobs": {"type": "array", "items": {"type": ["object", "null"]}},
  "text_offset": {"type": "array", "items": {"type": "integer"}}}}]}}}},
  "usage": {"$ref": "#/components/schemas/Usage"}}},
"ChatCompletion": {"type": "object", "required": ["id", "object", "created", "model", "choices", "usage"],
  "properties": {"id": {"type": "string"}, "object": {"const": "chat.completion"}, "created": {"type": "integer"},
  "model": {"type": "string"}, "choices": {"type": "array", "items": {"type": "object",
  "required": ["index", "message", "logprobs", "finish_reason"], "properties": {"index": {"type": "integer"},
  "message": {"type": "object", "required": ["role", "content"], "properties": {"role": {"const": "assistant"},
  "content": {"type": "string"}, "reasoning_content": {"type": "string"}, "refusal": {"type": "null"}}},
  "finish_reason": {"$ref": "#/components/schemas/FinishReason"}, "headrace": {"$ref": "#/components/schemas/Own"},
  "logprobs": {"anyOf": [{"type": "null"}, {"type": "object", "required": ["content"], "properties": {
  "content": {"type": "array", "items": {"type": "object", "required": ["token", "logprob", "bytes", "top_logprobs"],
  "properties": {"token": {"type": "string"}, "logprob": {"type": ["number", "null"]}, "bytes": {"type": "array",
  "items": {"type": "integer"}}, "top_logprobs": {"type": "array", "items": {"type": "object"}}}}}}}]}}}},
  "usage": {"$ref": "#/components/schemas/Usage"}}},
"Model": {"type": "object", "required": ["id", "object", "created", "owned_by"], "properties": {
  "id": {"type": "string"}, "object": {"const": "model"}, "created": {"type": "integer"},
  "owned_by": {"type": "string"}, "max_model_len": {"type": "integer"}}},
"Models": {"type": "object", "required": ["object", "data"], "properties": {"object": {"const": "list"},
  "data": {"type": "array", "items": {"$ref": "#/components/schemas/Model"}}}},
"Tokens": {"type": "object", "required": ["count", "max_model_len", "tokens"], "properties": {
  "count": {"type": "integer"}, "max_model_len": {"type": "integer"}, "tokens": {"type": "array",
  "items": {"type": "integer"}}, "token_strs": {"anyOf": [{"type": "null"}, {"type": "array",
  "items": {"type": "string"}}]}}},
"TokenizerInfo": {"type": "object", "required": ["vocab_size", "bos_token", "eos_token", "chat_template"], "properties": {
  "vocab_size": {"type": "integer"}, "max_model_len": {"type": "integer"}, "bos_token": {"type": ["string", "null"]},
  "eos_token": {"type": ["string", "null"]}, "chat_template": {"type": ["string", "null"]}}},
"Text": {"type": "object", "required": ["prompt"], "properties": {"prompt": {"type": "string"}}},
"OllamaModels": {"type": "object", "required": ["models"], "properties": {"models": {"type": "array",
  "items": {"type": "object", "required": ["name", "model"], "properties": {"name": {"type": "string"},
  "model": {"type": "string"}, "size": {"type": "integer"}}}}}},
"OllamaModel": {"type": "object", "required": ["details", "model_info", "capabilities"]},
"OllamaShowRequest": {"type": "object", "required": ["model"], "properties": {"model": {"type": "string"}}},
"OllamaChat": {"type": "object", "required": ["model", "created_at", "message", "done"], "properties": {
  "model": {"type": "string"}, "created_at": {"type": "string"}, "message": {"type": "object"},
  "done": {"type": "boolean"}, "done_reason": {"type": "string"}}},
"OllamaGenerate": {"type": "object", "required": ["model", "created_at", "response", "done"], "properties": {
  "model": {"type": "string"}, "created_at": {"type": "string"}, "response": {"type": "string"},
  "done": {"type": "boolean"}, "done_reason": {"type": "string"}}}
)";

std::string schema_ref(std::string_view name) { return str(R"({"$ref": "#/components/schemas/)", name, "\"}"); }

// A field may always be null: that is as good as absent.
std::string property(const FieldDescription& field) {
  const std::string otherwise = field.otherwise.empty() ? "" : str(" Without it: ", field.otherwise, '.');
  return str(json_string(field.name), R"(: {"description": )",
             json_string(str("Expected: ", field.expected, '.', otherwise)), R"(, "anyOf": [)", field.schema,
             R"(, {"type": "null"}]})");
}

std::string request_schema(std::string_view name, const std::vector<FieldDescription>& fields,
                           std::string_view required) {
  std::string out = str(json_string(name), R"(: {"type": "object", )");
  if (!required.empty()) out += str(R"("required": [)", json_string(required), "], ");
  out += R"("properties": {)";
  const char* before = "";
  for (const FieldDescription& field : fields) {
    if (!field.is_supported) continue;
    const bool is_required = field.name == required;
    out += std::exchange(before, ", ");
    out += is_required ? str(json_string(field.name), ": ", field.schema) : property(field);
  }
  return out + "}}";
}

struct Operation {
  std::string_view method, path, id, summary, request, response;
  std::string_view stream = "", error = "Error";
  std::string_view text = "application/json";
};

constexpr Operation kOperations[] = {
    {"get", "/health", "health", "Whether the model is loaded and works", "", "Status", "", "Loading"},
    {"get", "/livez", "livez", "Whether the event loop lives", "", "Status"},
    {"get", "/readyz", "readyz", "Whether a request would be taken now", "", "Status"},
    {"get", "/", "root", "One line, for clients that look whether somebody listens", "", "", "", "Error", "text/plain"},
    {"get", "/version", "version", "The program's version", "", "Version"},
    {"get", "/metrics", "metrics", "Counters, for Prometheus", "", "", "", "Error", "text/plain"},
    {"get", "/openapi.json", "openapi", "This document", "", ""},
    {"get", "/v1/models", "models", "The model's names", "", "Models"},
    {"get", "/v1/models/{model}", "model", "One of them", "", "Model"},
    {"post", "/v1/completions", "completion", "Continues texts", "CompletionRequest", "Completion",
     "text/event-stream"},
    {"post", "/v1/chat/completions", "chat", "Answers a conversation", "ChatRequest", "ChatCompletion",
     "text/event-stream"},
    {"post", "/tokenize", "tokenize", "The ids of a text or a conversation", "TokenizeRequest", "Tokens"},
    {"get", "/tokenizer_info", "tokenizerInfo", "The tokenizer's special tokens, and the chat template", "",
     "TokenizerInfo"},
    {"post", "/detokenize", "detokenize", "The text of ids", "DetokenizeRequest", "Text"},
    {"get", "/api/version", "ollamaVersion", "Ollama: the version", "", "Version", "", "OllamaError"},
    {"get", "/api/tags", "ollamaTags", "Ollama: the model's names", "", "OllamaModels", "", "OllamaError"},
    {"get", "/api/ps", "ollamaRunning", "Ollama: the model that is loaded", "", "OllamaModels", "", "OllamaError"},
    {"post", "/api/show", "ollamaShow", "Ollama: about the model", "OllamaShowRequest", "OllamaModel", "",
     "OllamaError"},
    {"post", "/api/chat", "ollamaChat", "Ollama: answers a conversation", "OllamaChatRequest", "OllamaChat",
     "application/x-ndjson", "OllamaError"},
    {"post", "/api/generate", "ollamaGenerate", "Ollama: continues a text", "OllamaGenerateRequest", "OllamaGenerate",
     "application/x-ndjson", "OllamaError"},
};

std::string operation_json(const Operation& o) {
  std::string out = str(json_string(o.method), R"(: {"operationId": )", json_string(o.id), R"(, "summary": )",
                        json_string(o.summary));
  if (o.path.ends_with("{model}")) {
    out += R"(, "parameters": [{"name": "model", "in": "path", "required": true, "schema": {"type": "string"}}])";
  }
  if (!o.request.empty()) {
    out += str(R"(, "requestBody": {"required": true, "content": {"application/json": {"schema": )",
               schema_ref(o.request), "}}}");
  }
  const std::string schema = o.response.empty()
                                 ? (o.text == "text/plain" ? R"({"type": "string"})" : R"({"type": "object"})")
                                 : schema_ref(o.response);
  out += str(R"(, "responses": {"200": {"description": "The answer", "content": {)", json_string(o.text),
             R"(: {"schema": )", schema, '}');
  if (!o.stream.empty()) out += str(", ", json_string(o.stream), R"(: {"schema": {}})");  // pieces
  out += str(R"(}}, "default": {"description": "An error", "content": {"application/json": {"schema": )",
             schema_ref(o.error), "}}}}");
  const bool is_open = o.path == "/health" || o.path == "/livez" || o.path == "/readyz";
  if (is_open) out += R"(, "security": [])";
  return out + '}';
}

std::string request_schemas() {
  return R"("Decoding": )" + decoding_schema() + ",\n" +
         request_schema("CompletionRequest", completion_fields(), "prompt") + ",\n" +
         request_schema("ChatRequest", chat_fields(), "messages") + ",\n" +
         request_schema("TokenizeRequest", tokenize_fields(), "") + ",\n" +
         request_schema("DetokenizeRequest", detokenize_fields(), "tokens") + ",\n" +
         request_schema("OllamaChatRequest", ollama_chat_fields(), "") + ",\n" +
         request_schema("OllamaGenerateRequest", ollama_generate_fields(), "");
}

}  // namespace

std::string openapi_json(std::string_view version) {
  std::string out = str(R"({"openapi": "3.1.0", "info": {"title": "headrace", "version": )", json_string(version),
                        "},\n\"security\": [{}, {\"key\": []}],\n\"paths\": {");
  const char* before = "";
  for (const Operation& operation : kOperations) {
    out += str(std::exchange(before, ",\n"), json_string(operation.path), ": {", operation_json(operation), '}');
  }
  return out +
         "},\n\"components\": {\"securitySchemes\": {\"key\": {\"type\": \"http\", \"scheme\": \"bearer\"}}, "
         "\"schemas\": {" +
         std::string(kSchemas) + ",\n" + request_schemas() + "}}}\n";
}

}  // namespace headrace
