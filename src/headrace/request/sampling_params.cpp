#include "headrace/request/sampling_params.h"

#include <cmath>

#include "headrace/base/error.h"

namespace headrace {
namespace {

// Integers in full.
std::string text_of(double value) {
  return value == std::trunc(value) && std::abs(value) < 1e15 ? str(static_cast<int64_t>(value)) : str(value);
}

}  // namespace

void validate(const SamplingParams& p) {
  const struct {
    const char* name;
    double value, least, most;
  } kRanges[] = {{"max_tokens", static_cast<double>(p.max_tokens), 1, 1 << 30},
                 {"temperature", static_cast<double>(p.temperature), 0, 100},
                 {"top_k", static_cast<double>(p.top_k), 0, 1 << 30},
                 {"top_p", static_cast<double>(p.top_p), double{1e-6f}, 1},
                 {"min_p", static_cast<double>(p.min_p), 0, 1},
                 {"steps", static_cast<double>(p.decoding.steps.value_or(1)), 1, 1 << 30},
                 {"max_passes", static_cast<double>(p.decoding.max_passes.value_or(1)), 1, 1 << 20},
                 {"threshold", static_cast<double>(p.decoding.threshold.value_or(0)), 0, 1e6},
                 {"add_block", static_cast<double>(p.decoding.add_block), 0, 1},
                 {"semi_complete", static_cast<double>(p.decoding.semi_complete), 0, 1},
                 {"edit_threshold", static_cast<double>(p.decoding.edit_threshold.value_or(0)), 0, 1},
                 {"remask_threshold", static_cast<double>(p.decoding.remask_threshold.value_or(0)), 0, 1},
                 {"copy_penalty", static_cast<double>(p.decoding.copy_penalty), 0, 1e6},
                 {"order_temperature", static_cast<double>(p.decoding.order_temperature), 0, 1e6},
                 {"merge_candidates", static_cast<double>(p.decoding.merge_candidates), 1, 64},
                 {"max_edits", static_cast<double>(p.decoding.max_edits.value_or(0)), 0, 1 << 20},
                 {"repetition_penalty", static_cast<double>(p.repetition_penalty), double{1e-2f}, 100}};
  for (const auto& range : kRanges) {
    HR_REQUIRE(range.value >= range.least && range.value <= range.most, ErrorCode::kInvalidArgument, range.name, " is ",
               text_of(range.value), ", expected ", text_of(range.least), " to ", text_of(range.most));
  }
  HR_REQUIRE(!p.decoding.steps || p.decoding.schedule == DecodingParams::Schedule::kReference,
             ErrorCode::kInvalidArgument, "steps is ", p.decoding.steps.value_or(0),
             ", expected none without the schedule 'reference'");
  HR_REQUIRE(!p.decoding.max_passes || p.decoding.schedule == DecodingParams::Schedule::kThreshold,
             ErrorCode::kInvalidArgument, "max_passes is ", p.decoding.max_passes.value_or(0),
             ", expected none with the schedule 'reference'");
  HR_REQUIRE(!p.decoding.remask_threshold || p.decoding.schedule == DecodingParams::Schedule::kThreshold,
             ErrorCode::kInvalidArgument, "remask_threshold is ", p.decoding.remask_threshold.value_or(0),
             ", expected none with the schedule 'reference'");
  for (const std::string& stop : p.stop) {
    HR_REQUIRE(!stop.empty(), ErrorCode::kInvalidArgument, "stop: a stop text is empty");
  }
}

}  // namespace headrace
