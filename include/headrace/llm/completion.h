// The text of a request, so far or whole.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "headrace/request/sequence.h"

namespace headrace {

struct Completion {
  std::string text;
  std::vector<int32_t> prompt_ids, ids;
  FinishReason finish_reason = FinishReason::kLength;
  std::vector<float> logprobs;  // per id: natural log-probability when chosen, before temperature
  int32_t num_reused = 0;       // prompt tokens taken from the prefix cache
  int32_t num_visible = 0;      // ids with some text in `text`: no end token, no stop text
  int32_t num_first = 0;        // of these, from the step of the first id
  int64_t sequence_id = 0;      // the engine's number of the request (Engine::why_miss)
  int32_t num_forwards = 0;     // forward passes that sampled or stored tokens

  double tokens_per_forward() const { return num_forwards > 0 ? static_cast<double>(num_visible) / num_forwards : 0; }
};

}  // namespace headrace
