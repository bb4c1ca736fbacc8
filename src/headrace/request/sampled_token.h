// A row of logits, read.
#pragma once
#include <cstdint>

namespace headrace {

// Of which distribution a token's confidence, margin and entropy are, by which it is chosen.
enum class ScoresOf : uint8_t {
  kModel,     // the model's, before temperature and filters
  kFiltered,  // what these leave of it
};

struct SampledToken {
  int32_t id = 0;
  float logprob = 0;     // natural log of its probability before temperature and filters
  float confidence = 0;  // that probability, or that of the other distribution: ScoresOf
  float margin = 0;      // best minus second-best probability
  float entropy = 0;     // of that distribution, in nats
  int32_t best_id = 0;   // the most likely token, before temperature and filters
  float best_logprob = 0;
  double order = 0;  // in [0, 1), of the seed, the position and the step alone: Rule::kRandom ranks by it
};

// A token, and how likely it is.
struct TokenShare {
  int32_t id = 0;
  float probability = 0;
};

}  // namespace headrace
