#include "headrace/request/sampling_params.h"

#include <cmath>
#include <limits>
#include <set>

#include "headrace/core/error.h"

namespace headrace {
namespace {

// Formats integers without an exponent.
std::string text_of(double value) {
  return value == std::trunc(value) && std::abs(value) < 1e15 ? str(static_cast<int64_t>(value)) : str(value);
}

// Refuses fields that another field causes to be ignored.
void refuse_unread(const DecodingParams& d) {
  const bool reference = d.schedule == DecodingParams::Schedule::kReference;
  const bool random = d.rule == DecodingParams::Rule::kRandom;
  const bool scored = !random && d.rule != DecodingParams::Rule::kLeftmost;
  HR_REQUIRE(!d.steps || reference, ErrorCode::kInvalidArgument, "steps is ", d.steps.value_or(0),
             ", expected none without the schedule 'reference'");
  HR_REQUIRE(!d.max_passes || !reference, ErrorCode::kInvalidArgument, "max_passes is ", d.max_passes.value_or(0),
             ", expected none with the schedule 'reference'");
  HR_REQUIRE(!d.remask_threshold || !reference, ErrorCode::kInvalidArgument, "remask_threshold is ",
             d.remask_threshold.value_or(0), ", expected none with the schedule 'reference'");
  HR_REQUIRE(!d.threshold || scored, ErrorCode::kInvalidArgument, "threshold is ", d.threshold.value_or(0),
             ", expected none with the rule '", random ? "random" : "leftmost", "', by which no token passes one");
  HR_REQUIRE(d.order_temperature == 0 || !random, ErrorCode::kInvalidArgument, "order_temperature is ",
             d.order_temperature, ", expected 0 with the rule 'random'");
}

void check_biases(const std::vector<LogitBias>& biases) {
  std::set<int32_t> ids;
  for (const auto& [id, bias] : biases) {
    HR_REQUIRE(id >= 0, ErrorCode::kInvalidArgument, "logit_bias is for token ", id, ", expected 0 or more");
    HR_REQUIRE(ids.insert(id).second, ErrorCode::kInvalidArgument, "logit_bias is given twice for token ", id,
               ", expected once");
    HR_REQUIRE((bias >= -100 && bias <= 100) || bias == -std::numeric_limits<float>::infinity(),
               ErrorCode::kInvalidArgument, "logit_bias is ", text_of(static_cast<double>(bias)), " for token ", id,
               ", expected -100 to 100, or -inf");
  }
}

}  // namespace

void validate(const SamplingParams& p) {
  const struct {
    const char* name;
    double value, least, most;
  } kRanges[] = {{"max_tokens", static_cast<double>(p.max_tokens), 1, 1 << 30},
                 {"min_tokens", static_cast<double>(p.min_tokens), 0, static_cast<double>(p.max_tokens)},
                 {"temperature", static_cast<double>(p.temperature), 0, 100},
                 {"top_k", static_cast<double>(p.top_k), 0, 1 << 30},
                 {"top_p", static_cast<double>(p.top_p), double{1e-6f}, 1},
                 {"min_p", static_cast<double>(p.min_p), 0, 1},
                 {"presence_penalty", static_cast<double>(p.presence_penalty), -2, 2},
                 {"frequency_penalty", static_cast<double>(p.frequency_penalty), -2, 2},
                 {"top_logprobs", static_cast<double>(p.top_logprobs), 0, kMostLogprobs},
                 {"prompt_logprobs", static_cast<double>(p.prompt_logprobs.value_or(0)), 0, kMostLogprobs},
                 {"steps", static_cast<double>(p.decoding.steps.value_or(1)), 1, 1 << 30},
                 {"max_passes", static_cast<double>(p.decoding.max_passes.value_or(1)), 1, 1 << 20},
                 {"add_block", static_cast<double>(p.decoding.add_block), 0, 1},
                 {"stability", static_cast<double>(p.decoding.stability), 0, 1},
                 {"semi_complete", static_cast<double>(p.decoding.semi_complete), 0, 1},
                 {"edit_threshold", static_cast<double>(p.decoding.edit_threshold.value_or(0)), 0, 1},
                 {"remask_threshold", static_cast<double>(p.decoding.remask_threshold.value_or(0)), 0, 1},
                 {"copy_penalty", static_cast<double>(p.decoding.copy_penalty), 0, 1e6},
                 {"cfg_scale", static_cast<double>(p.decoding.cfg_scale), 0, 1e6},
                 {"order_temperature", static_cast<double>(p.decoding.order_temperature), 0, 1e6},
                 {"merge_candidates", static_cast<double>(p.decoding.merge_candidates), 1, 64},
                 {"max_edits", static_cast<double>(p.decoding.max_edits.value_or(0)), 0, 1 << 20},
                 {"repetition_penalty", static_cast<double>(p.repetition_penalty), double{1e-2f}, 100}};
  for (const auto& range : kRanges) {
    HR_REQUIRE(range.value >= range.least && range.value <= range.most, ErrorCode::kInvalidArgument, range.name, " is ",
               text_of(range.value), ", expected ", text_of(range.least), " to ", text_of(range.most));
  }
  refuse_unread(p.decoding);
  for (const std::string& stop : p.stop) {
    HR_REQUIRE(!stop.empty(), ErrorCode::kInvalidArgument, "stop: a stop text is empty");
  }
  for (const int32_t id : p.stop_token_ids) {
    HR_REQUIRE(id >= 0, ErrorCode::kInvalidArgument, "stop_token_ids: ", id, ", expected 0 or more");
  }
  check_biases(p.logit_bias);
}

}  // namespace headrace
