#include <utility>

#include "headrace/serve/api_handlers.h"
#include "headrace/serve/chat_request.h"
#include "headrace/serve/completion_request.h"
#include "headrace/serve/json_body.h"
#include "headrace/serve/ollama_response.h"
#include "headrace/serve/request_field.h"
#include "headrace/text/json_string.h"

namespace headrace {
namespace {

using Form = OllamaResponse::Form;

Answer ollama_work(Form form, OllamaRequest request, RenderedChat chat, const ServedModel& model, Call& call) {
  ResponseInfo info = response_info("", call);
  info.model = model.name_for(request.model);
  Work work;
  work.requests.push_back(generation_request(request, chat.ids));
  work.response = std::make_unique<OllamaResponse>(form, std::move(request), std::move(info), std::move(chat.text),
                                                   std::move(chat.ids), model.tokenizer());
  return work;
}

// A request without a text asks whether the model is there.
std::string loaded_json(Form form, const std::string& name, const Call& call) {
  const ResponseInfo info = response_info("", call);
  return str(R"({"model": )", json_string(name), R"(, "created_at": ")", time_text(info.created),
             form == Form::kChat ? R"(", "message": {"role": "assistant", "content": ""})" : R"(", "response": "")",
             R"(, "done": true, "done_reason": "load"})");
}

RenderedChat plain_text(const OllamaRequest& request, const ServedModel& model) {
  model.size().check_text(request.prompt.size());
  RenderedChat chat{
      .ids = model.tokenizer().encode(request.system + request.prompt, {.special_tokens = SpecialTokens::kParse})};
  model.size().check(chat.ids.size());
  return chat;
}

// A message of the user, if the model has a template.
RenderedChat prompt_of(OllamaRequest& request, const ServedModel& model) {
  if (request.raw || model.chat() == nullptr) return plain_text(request, model);
  const auto add = [&request](const char* role, const std::string& text) {
    request.input.messages.push_back(TemplateValue::Object{{"role", role}, {"content", text}});
  };
  if (!request.system.empty()) add("system", request.system);
  add("user", request.prompt);
  return rendered(request.input, model);
}

}  // namespace

Answer answer_ollama_chat(const JsonNode& body, const ServedModel& model, Call& call) {
  OllamaRequest request = ollama_chat_request(body, model.defaults());
  const std::string name = model.name_for(request.model);
  if (request.input.messages.empty()) return loaded_json(Form::kChat, name, call);
  RenderedChat chat = rendered(request.input, model);
  return ollama_work(Form::kChat, std::move(request), std::move(chat), model, call);
}

Answer answer_ollama_generate(const JsonNode& body, const ServedModel& model, Call& call) {
  OllamaRequest request = ollama_generate_request(body, model.defaults());
  const std::string name = model.name_for(request.model);
  if (request.prompt.empty()) return loaded_json(Form::kGenerate, name, call);
  RenderedChat chat = prompt_of(request, model);
  return ollama_work(Form::kGenerate, std::move(request), std::move(chat), model, call);
}

std::string ollama_details_json(const ServedModel& model) {
  const ModelInfo& info = model.llm().model_info();
  const bool is_quantised = !info.packed_formats.empty();
  return str(R"({"format": ")", is_quantised ? "gguf" : "safetensors", R"(", "family": )",
             json_string(info.architecture), R"(, "families": [)", json_string(info.architecture),
             R"(], "parameter_size": ")", info.num_parameters / 1'000'000, R"(M", "quantization_level": )",
             json_string(info.weight_types()), '}');
}

namespace {

// {"models": [...]}: the model by each of its names. `more`: members that follow.
std::string ollama_list_json(const ServedModel& model, std::string_view more) {
  std::string out = R"({"models": )";
  append_list(model.names(), out, [&](const std::string& name) {
    out += str(R"({"name": )", json_string(name), R"(, "model": )", json_string(name), R"(, "size": )",
               model.llm().model_info().weight_bytes, R"(, "digest": "", "details": )", ollama_details_json(model),
               more, '}');
  });
  return out + '}';
}

}  // namespace

std::string ollama_tags_json(const ServedModel& model) {
  return ollama_list_json(model, str(R"(, "modified_at": ")", time_text(model.created()), '"'));
}

std::string ollama_running_json(const ServedModel& model) {
  constexpr std::string_view kNever = "9999-12-31T23:59:59Z";  // the model stays loaded
  const bool on_gpu = model.llm().device().type != DeviceType::kCPU;
  return ollama_list_json(model, str(R"(, "expires_at": ")", kNever, R"(", "size_vram": )",
                                     on_gpu ? model.llm().model_info().weight_bytes : 0, R"(, "context_length": )",
                                     model.size().context()));
}

Answer answer_ollama_show(const JsonNode& body, const ServedModel& model, Call& /*call*/) {
  std::string name;
  for (const JsonNode& member : body.members()) {
    if ((member.name() == "model" || member.name() == "name") && !member.is_null()) name = without_tag(member.text());
  }
  require_field(!name.empty(), "model", "model is missing, expected a string");
  model.name_for(name);
  const ModelInfo& info = model.llm().model_info();
  const std::string family = json_string(info.architecture);
  return str(R"({"modelfile": "", "parameters": "", "template": )",
             json_string(model.chat() != nullptr ? model.chat()->source() : ""), R"(, "details": )",
             ollama_details_json(model), R"(, "model_info": {"general.architecture": )", family, ", ",
             json_string(info.architecture + ".context_length"), ": ", model.size().context(),
             R"(}, "capabilities": ["completion"]})");
}

}  // namespace headrace
