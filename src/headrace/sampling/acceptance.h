// Acceptance rules: which candidates of a block become its tokens.
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
  float order_temperature = 0;                                           // see DecodingParams
};

// Returns the rule of a request: its own, or the default of DecodingParams::rule.
DecodingParams::Rule rule_of(const DecodingParams& params, const DiffusionInfo& info);

// Returns the rule with its threshold: the request's, or else the model's.
AcceptanceRule acceptance_rule(const DecodingParams& params, const DiffusionInfo& info);

// Returns the threshold of the request's passes; absent if candidates are only ranked.
std::optional<float> threshold_of(const DecodingParams& params, const DiffusionInfo& info);

// Error kInvalidArgument for a probability threshold above 1 other than infinity, and for a missing threshold if the
// rule needs nats: the model's own is a probability.
void check_threshold(const DecodingParams& params, const DiffusionInfo& info);

// Error kInvalidArgument for a semi_complete if the model's blocks all have guaranteed progress
// (DiffusionInfo::progress).
void check_semi_complete(const DecodingParams& params, const DiffusionInfo& info);

enum class AtLeast : uint8_t { kNone, kOne };

// Returns the indices of the accepted candidates, ascending. kOne: the best if none passes; ties go to the lowest
// index.
std::vector<size_t> accepted(std::span<const SampledToken> candidates, const AcceptanceRule& rule, AtLeast least);

// Returns the indices of the `count` best candidates, ascending; ties go to the lowest index.
std::vector<size_t> best_of(std::span<const SampledToken> candidates, const AcceptanceRule& rule, int32_t count);

// Returns the score that is compared with the threshold, and ranked by if the order temperature is 0; larger is better.
double score_of(const SampledToken& candidate, DecodingParams::Rule rule);

}  // namespace headrace
