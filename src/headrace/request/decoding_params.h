// How a request of a diffusion strategy decides its tokens.
#pragma once
#include <cstdint>
#include <optional>

namespace headrace {

struct DecodingParams {
  // What a candidate token must pass to be kept. Whatever the rule, the first unfinished block keeps at least the best
  // candidate, so every step makes progress.
  enum class Rule : uint8_t {
    kConfidence,    // its probability passes the threshold
    kMargin,        // best minus second-best probability passes the threshold
    kEntropy,       // the entropy of its distribution, in nats, is at most the threshold
    kEntropyBound,  // in ascending entropy, the longest run whose entropies before each add up to at most the threshold
  };
  Rule rule = Rule::kConfidence;
  std::optional<float> threshold;  // absent: the model's
  float add_block = 0.1f;          // share of a block that is decided before the next one is opened behind it
  float semi_complete = 0.9f;      // share of a block that is decided before the next one is sure of progress
};

}  // namespace headrace
