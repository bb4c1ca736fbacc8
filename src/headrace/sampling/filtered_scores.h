// How sure a model is of a token, by what temperature and filters leave of its row: published loops rank by it.
#pragma once
#include <optional>
#include <span>

#include "headrace/ops/token_draw.h"

namespace headrace {

// As SampledToken has them, of the distribution that sample_tokens draws from.
struct FilteredScores {
  float confidence = 0, margin = 0, entropy = 0;
};

// Of token `id`, one of those that are left. The logits are numbers or minus infinity, one of them a number; a
// temperature of 0 divides nothing, and the filters stand all the same.
FilteredScores filtered_scores(std::span<const float> logits, std::optional<int32_t> excluded_id, const TokenDraw& draw,
                               int32_t id);

}  // namespace headrace
