// Requests of OpenAI's completions API.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "headrace/llm/generation_request.h"
#include "headrace/text/tokenizer.h"

namespace headrace {

class JsonNode;

struct CompletionRequest {
  using Prompt = std::variant<std::string, std::vector<int32_t>>;  // a text, or its ids

  std::string model = {};  // empty: not stated
  std::vector<Prompt> prompts = {};
  SamplingParams params = {};  // with the log-probabilities that the response shows
  int32_t n = 1;
  std::optional<int32_t> best_of = {};          // equals n
  bool echo = false;                            // the choices' texts begin with the prompt
  bool no_output = false;                       // max_tokens is 0: params.max_tokens is 1, and the response has none
  bool stream = false, include_usage = false;   // server-sent events; the usage at their end
  std::optional<int32_t> logprobs = {};         // likeliest tokens beside each one; absent: no log-probabilities
  std::optional<int32_t> prompt_logprobs = {};  // vLLM's, likewise
  bool add_special_tokens = true;               // in front of a prompt that is a text
  bool skip_special_tokens = true;              // in the choices' texts
  std::string cache_salt = {};
  std::vector<std::string> unknown_fields = {};  // which the reader has ignored

  int32_t num_choices() const { return n * static_cast<int32_t>(prompts.size()); }
};

// Reads a request's body. `defaults`: the model's (AsyncLLM::default_params). Unknown fields are ignored; fields of
// other servers that would change the text are refused. Throws RequestError 400: one sentence that names the field.
CompletionRequest completion_request(const JsonNode& body, const SamplingParams& defaults);

// Returns the engine's requests, one for each prompt. Special tokens that a text spells are read as tokens, as in vLLM.
// Throws RequestError 400 for a prompt without tokens, and with the code context_length_exceeded for one that leaves no
// room in `context` tokens.
std::vector<GenerationRequest> generation_requests(const CompletionRequest& request, const Tokenizer& tokenizer,
                                                   int32_t context);

// A field that completion_request() reads, in words.
struct CompletionField {
  std::string_view name;
  std::string expected;
  std::string_view otherwise;  // its value if it is absent or null
};
std::vector<CompletionField> completion_fields();

}  // namespace headrace
