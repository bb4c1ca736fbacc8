// headrace.SamplingParams and DiffusionParams as the engine takes them.
#pragma once
#include <nanobind/nanobind.h>

#include "headrace/request/sampling_params.h"
#include "headrace/text/detokenizer.h"

namespace headrace::python {

struct RequestParams {
  SamplingParams sampling;
  int32_t n = 1;
  bool reports_steps = false;
  SpecialText special_text = SpecialText::kSkip;
};

// `given`: the fields that are set. What it does not set is as in `defaults`. Errors: kInvalidArgument, with the
// field's name; those of validate().
RequestParams params_of(const nanobind::dict& given, const SamplingParams& defaults);
// Returns the schedule of diffusion decoding that `given` asks for: it decides which defaults a model has.
DecodingParams::Schedule schedule_of(const nanobind::dict& given);

}  // namespace headrace::python
