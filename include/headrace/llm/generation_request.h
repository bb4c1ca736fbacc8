// A request of AsyncLLM.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "headrace/request/sampling_params.h"
#include "headrace/request/token_constraint.h"

namespace headrace {

struct GenerationRequest {
  std::vector<int32_t> prompt_ids = {};
  SamplingParams params = {};   // an absent seed is drawn; stop texts are the consumer's (TextStream)
  int32_t n = 1;                // choices: answers to the prompt, each with a seed of its own (seed_of_choice)
  std::string cache_salt = {};  // cached text is shared with requests of the same salt only
  std::shared_ptr<TokenConstraint> constraint = nullptr;  // null: any token may come; expects n = 1
  // Each step is an event of its own, with its StepReport, also one without tokens; expects n = 1.
  bool reports_steps = false;
  bool explains_cache = false;  // the event with the first token tells why the prompt left the prefix cache
};

// Seed of a choice: the first one has that of the request.
uint64_t seed_of_choice(uint64_t seed, int32_t choice);

}  // namespace headrace
