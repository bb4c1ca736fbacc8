// Which candidates of a block become its tokens.
#pragma once
#include <optional>
#include <span>
#include <vector>

#include "headrace/models/diffusion_info.h"
#include "headrace/request/decoding_params.h"
#include "headrace/request/sampled_token.h"

namespace headrace {

struct AcceptanceRule {
  DecodingParams::Rule rule = DecodingParams::Rule::kConfidence;
  float threshold = 0.9f;
  DiffusionInfo::Acceptance passes = DiffusionInfo::Acceptance::kAbove;  // of kConfidence and kMargin
  float order_temperature = 0;                                           // as DecodingParams has it
};

// By what a request's tokens are chosen: as it states, or else as DecodingParams::rule says.
DecodingParams::Rule rule_of(const DecodingParams& params, const DiffusionInfo& info);

// The same with its threshold, the model's where it states none.
AcceptanceRule acceptance_rule(const DecodingParams& params, const DiffusionInfo& info);

// What candidates are held against in its passes; nothing where they are only ranked.
std::optional<float> threshold_of(const DecodingParams& params, const DiffusionInfo& info);

// Error kInvalidArgument for a threshold above 1, other than infinity, that probabilities are held against, and for
// none where nats are: the model's own is a probability.
void check_threshold(const DecodingParams& params, const DiffusionInfo& info);

// Error kInvalidArgument for a semi_complete where every block is sure of progress (DiffusionInfo::progress).
void check_semi_complete(const DecodingParams& params, const DiffusionInfo& info);

enum class AtLeast : uint8_t { kNone, kOne };

// Indices of the accepted candidates, ascending. With kOne, the best of them when none passes; ties go to the lowest.
std::vector<size_t> accepted(std::span<const SampledToken> candidates, const AcceptanceRule& rule, AtLeast least);

// Indices of the `count` best candidates, ascending; ties go to the lowest.
std::vector<size_t> best_of(std::span<const SampledToken> candidates, const AcceptanceRule& rule, int32_t count);

// What a candidate is held against the threshold by, and ranked by while the order temperature is 0: larger is better.
double score_of(const SampledToken& candidate, DecodingParams::Rule rule);

}  // namespace headrace
