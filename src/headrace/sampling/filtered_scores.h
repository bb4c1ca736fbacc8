// Confidence scores of a token over the distribution after temperature and filters, by which some published loops rank.
#pragma once
#include <optional>
#include <span>

#include "headrace/ops/token_draw.h"

namespace headrace {

// As in SampledToken, of the distribution that sample_tokens draws from.
struct FilteredScores {
  float confidence = 0, margin = 0, entropy = 0;
};

// Returns the scores of token `id`, which passes the filters. Logits are finite or -inf, at least one finite. A
// temperature of 0 divides nothing, but the filters apply.
FilteredScores filtered_scores(std::span<const float> logits, std::optional<int32_t> excluded_id, const TokenDraw& draw,
                               int32_t id);

}  // namespace headrace
