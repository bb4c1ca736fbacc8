// How a request's tokens are chosen and when it ends.
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
  std::vector<std::string> stop;        // texts that end the output; they are not part of it
  std::vector<int32_t> stop_token_ids;  // tokens that do so beside the model's end tokens, whatever becomes of these
  DecodingParams decoding;              // of diffusion strategies
  // What becomes of the model's end tokens.
  enum class EndOfText : uint8_t {
    kStops,    // the first one ends the request
    kIgnored,  // they are tokens like all others
    kBanned,   // none is ever chosen: their logits are -inf before anything else reads them
  } end_of_text = EndOfText::kStops;

  // Whether more than a temperature and the repetition penalty changes the logits before they are read; the host alone
  // does that.
  bool changes_logits() const;
};

// Error kInvalidArgument: the field, what was found, what is expected.
void validate(const SamplingParams& params);

}  // namespace headrace
