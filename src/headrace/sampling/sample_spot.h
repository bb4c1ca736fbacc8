// Parameters of one row of logits.
#pragma once
#include <cstdint>
#include <optional>
#include <span>

#include "headrace/ops/token_draw.h"
#include "headrace/request/sampled_token.h"
#include "headrace/request/sampling_params.h"
#include "headrace/request/token_counts.h"

namespace headrace {

// Of a row whose token nobody reads.
inline const SamplingParams kNobodysParams{.temperature = 0};

// Owns nothing.
struct SampleSpot {
  const SamplingParams* params = &kNobodysParams;
  int64_t text = 0;                             // identifies the request; its rows stand together
  std::span<const int32_t> history = {};        // its tokens so far, for the repetition penalty
  int32_t num_final = 0;                        // leading ones that will not change
  int64_t position = 0;                         // in the request
  int32_t step = 0;                             // earlier passes over this position
  float temperature = 1;                        // divides the row first
  std::optional<int32_t> discouraged_id = {};   // its logit is lowered by params->decoding.copy_penalty
  TopPOf top_p_of = TopPOf::kTopK;              // order of filters of the family
  std::span<const int32_t> banned_ids = {};     // never chosen: logits set to -inf
  std::span<const int32_t> early_ids = {};      // likewise: they may not come before min_tokens
  const TokenCounts* output_counts = nullptr;   // for the presence and frequency penalties; null: no tokens
  std::span<const uint32_t> allowed_bits = {};  // TokenConstraint::fill; empty: every token may come
  ScoresOf scores_of = ScoresOf::kModel;        // distribution of the token's scores
};

}  // namespace headrace
