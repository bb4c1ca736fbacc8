// A row of logits, read.
#pragma once
#include <cstdint>

namespace headrace {

// Of which distribution a token's confidence, margin and entropy are, by which it is chosen.
enum class ScoresOf : uint8_t {
  kModel,     // the model's as penalties, bans, guidance and the strategy's temperature leave it, before filters
  kFiltered,  // what these leave of it
};

struct SampledToken {
  int32_t id = 0;
  // Natural log of the probability that the model gives it: before penalties, bans, guidance, temperatures and filters.
  float logprob = 0;
  float confidence = 0;          // its probability by which it was chosen: ScoresOf
  float margin = 0;              // best minus second-best probability
  float entropy = 0;             // of that distribution, in nats
  int32_t best_id = 0;           // the most likely token by kModel's distribution
  float best_logprob = 0;        // of that distribution
  float best_model_logprob = 0;  // as `logprob`
  double order = 0;              // in [0, 1), of the seed, the position and the step alone: Rule::kRandom ranks by it
};

// A token, and how likely it is.
struct TokenShare {
  int32_t id = 0;
  float probability = 0;
};

}  // namespace headrace
