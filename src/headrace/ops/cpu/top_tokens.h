// top_tokens on a CPU. One implementation serves all ISA variants: memory bounds it.
#pragma once
#include <optional>
#include <span>
#include <vector>

#include "headrace/ops/top_tokens.h"

namespace headrace::cpu {

struct TokenLogit {
  float logit;
  int32_t id;
};

// Returns the `count` ids of the largest logits without excluded_id, descending; for equal logits the lower id first.
// Returns all ids if there are fewer. NaN counts as minus infinity.
std::vector<TokenLogit> likeliest_tokens(std::span<const float> logits, size_t count,
                                         std::optional<int32_t> excluded_id);

// Throws as check() does.
void top_tokens(const TopTokensArgs& args, const OpContext& context);

}  // namespace headrace::cpu
