// Requests of OpenAI's completions API.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "headrace/llm/generation_request.h"
#include "headrace/serve/api_request.h"
#include "headrace/text/tokenizer.h"

namespace headrace {

class PromptSize;

struct CompletionRequest : ApiRequest {
  using Prompt = std::variant<std::string, std::vector<int32_t>>;  // a text, or its ids

  std::vector<Prompt> prompts = {};
  std::optional<int32_t> best_of = {};          // equals n
  bool echo = false;                            // the choices' texts begin with the prompt
  std::optional<int32_t> prompt_logprobs = {};  // vLLM's, as logprobs
  bool add_special_tokens = true;               // in front of a prompt that is a text

  int32_t num_choices() const { return n * static_cast<int32_t>(prompts.size()); }
};

// Reads a request's body. `defaults`: the model's (AsyncLLM::default_params). Unknown fields are ignored; fields of
// other servers that would change the text are refused. Throws RequestError 400: one sentence that names the field.
CompletionRequest completion_request(const JsonNode& body, const SamplingParams& defaults);

// Returns the engine's requests, one for each prompt. Special tokens that a text spells are read as tokens, as in vLLM.
// Throws RequestError 400 for a prompt without tokens, and for one that `size` refuses.
std::vector<GenerationRequest> generation_requests(const CompletionRequest& request, const Tokenizer& tokenizer,
                                                   const PromptSize& size);

// Returns the engine's request of one prompt.
GenerationRequest generation_request(const ApiRequest& request, std::vector<int32_t> ids);

// The fields that completion_request() reads.
std::vector<FieldDescription> completion_fields();

}  // namespace headrace
