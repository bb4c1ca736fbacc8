// Requests of OpenAI's chat completions API.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/chat/chat_template.h"
#include "headrace/serve/api_request.h"
#include "headrace/serve/served_model.h"

namespace headrace {

struct ChatRequest : ApiRequest {
  ChatInput input;
  bool wants_logprobs = false;                     // `logprobs` then has how many likeliest tokens are shown
  std::optional<int32_t> top_logprobs = {};        // expects them
  std::optional<bool> add_generation_prompt = {};  // absent: unless the last message goes on
};

// Reads a request's body, as completion_request(). Messages keep fields that the template may read. Content is a text,
// or a list of parts that are texts. Throws RequestError 400.
ChatRequest chat_request(const JsonNode& body, const SamplingParams& defaults);
std::vector<FieldDescription> chat_fields();

// Readers of other APIs' requests.
void read_messages(ChatInput& input, const JsonNode& messages);
void read_template_kwargs(ChatInput& input, const JsonNode& kwargs);

// A conversation as the model sees it.
struct RenderedChat {
  std::string text;
  std::vector<int32_t> ids;
};
// Throws RequestError 400 if the model has no template, in the template's own words if that refuses the conversation,
// and for a prompt that does not fit.
RenderedChat rendered(const ChatInput& input, const ServedModel& model);

}  // namespace headrace
