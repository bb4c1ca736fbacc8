// Parameters of a request: how its tokens are sampled and when it ends.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "headrace/request/decoding_params.h"

namespace headrace {

// A number that is added to a token's logit.
struct LogitBias {
  int32_t id = 0;
  float bias = 0;  // -infinity: the token is never chosen
};

// The most of top_logprobs and prompt_logprobs: what a device finds in one pass (TopTokensArgs).
inline constexpr int32_t kMostLogprobs = 128;

struct SamplingParams {
  int32_t max_tokens = 256;
  int32_t min_tokens = 0;        // before so many, no token is chosen that ends the output
  float temperature = 1;         // 0: the most likely token
  int32_t top_k = 0;             // 0: all
  float top_p = 1, min_p = 0;    // shares of probability
  float repetition_penalty = 1;  // divides positive and multiplies negative logits of tokens that occurred
  // Subtracted from the logits of tokens of the output so far: once; for each time that the token occurs. -2 to 2.
  float presence_penalty = 0, frequency_penalty = 0;
  std::vector<LogitBias> logit_bias;    // each id at most once; biases -100 to 100 or -infinity
  std::optional<uint64_t> seed;         // absent: AsyncLLM draws one; an engine takes 0
  std::vector<std::string> stop;        // stop texts; not part of the output
  std::vector<int32_t> stop_token_ids;  // stop tokens besides the model's end tokens, in every mode of end_of_text
  // Likeliest tokens to report with each token, with their log-probabilities. This and the next one expect a strategy
  // that decides one token at a time.
  int32_t top_logprobs = 0;
  // Log-probability of each prompt token but the first, and so many of the likeliest in its place. The prompt then
  // takes nothing from the prefix cache. Absent: none.
  std::optional<int32_t> prompt_logprobs;
  DecodingParams decoding;  // for diffusion strategies
  // Treatment of the model's end tokens.
  enum class EndOfText : uint8_t {
    kStops,    // the first one ends the request
    kIgnored,  // ordinary tokens
    kBanned,   // never chosen: logits set to -inf first
  } end_of_text = EndOfText::kStops;
};

// Error kInvalidArgument names the field, the value and what is expected.
void validate(const SamplingParams& params);

}  // namespace headrace
