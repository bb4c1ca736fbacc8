// Parameters of a request: how its tokens are sampled and when it ends.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "headrace/request/decoding_params.h"

namespace headrace {

struct SamplingParams {
  int32_t max_tokens = 256;
  float temperature = 1;         // 0: the most likely token
  int32_t top_k = 0;             // 0: all
  float top_p = 1, min_p = 0;    // shares of probability
  float repetition_penalty = 1;  // divides positive and multiplies negative logits of tokens that occurred
  uint64_t seed = 0;
  std::vector<std::string> stop;        // stop texts; not part of the output
  std::vector<int32_t> stop_token_ids;  // stop tokens besides the model's end tokens, in every mode of end_of_text
  DecodingParams decoding;              // for diffusion strategies
  // Treatment of the model's end tokens.
  enum class EndOfText : uint8_t {
    kStops,    // the first one ends the request
    kIgnored,  // ordinary tokens
    kBanned,   // never chosen: logits set to -inf first
  } end_of_text = EndOfText::kStops;

  // Returns true if the logits are changed by more than a temperature and the repetition penalty. Only the host applies
  // such changes.
  bool changes_logits() const;
};

// Error kInvalidArgument names the field, the value and what is expected.
void validate(const SamplingParams& params);

}  // namespace headrace
