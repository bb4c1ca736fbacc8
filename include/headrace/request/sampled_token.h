// The result of sampling a row of logits.
#pragma once
#include <cmath>
#include <cstdint>
#include <vector>

namespace headrace {

// The distribution of a token's confidence, margin and entropy.
enum class ScoresOf : uint8_t {
  kModel,     // the model's after penalties, bans, guidance and the strategy's temperature, before filters
  kFiltered,  // after the request's temperature and filters
};

struct SampledToken {
  int32_t id = 0;
  // Natural log-probability in the model's distribution: before penalties, bans, guidance, temperatures and filters.
  float logprob = 0;
  float confidence = 0;          // its probability in the distribution ScoresOf
  float margin = 0;              // best minus second-best probability
  float entropy = 0;             // of that distribution, in nats
  int32_t best_id = 0;           // most likely token of kModel's distribution
  float best_logprob = 0;        // of kModel's distribution
  float best_model_logprob = 0;  // in the distribution of `logprob`
  double order = 0;              // in [0, 1), from seed, position and step; Rule::kRandom ranks by it
  bool none_left = false;        // biases, bans and a constraint forbid every token; the token is not valid

  // Returns false if a logit of the row was NaN, or its largest infinite, in one of the two distributions. The fields
  // but none_left then mean nothing, and the ids are in the vocabulary.
  bool is_valid() const { return !none_left && !std::isnan(logprob) && !std::isnan(best_logprob); }
};

// A token and its natural log-probability in the model's distribution.
struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0;
};

// A token of the prompt, given those before it.
struct PromptToken {
  TokenLogprob token;
  std::vector<TokenLogprob> top;  // the likeliest in its place, descending
};

// A token and its probability.
struct TokenShare {
  int32_t id = 0;
  float probability = 0;
};

}  // namespace headrace
