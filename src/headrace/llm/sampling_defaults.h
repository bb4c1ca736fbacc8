// How a model's makers want its tokens drawn.
#pragma once
#include <filesystem>

#include "headrace/request/sampling_params.h"

namespace headrace {

// What generation_config.json in `model` says of temperature, top_k, top_p, min_p and repetition_penalty; the rest, and
// all of it without that file, as SamplingParams has it. "do_sample": false is temperature 0. Error kModelFile for a
// value of another type or outside validate()'s range.
SamplingParams sampling_defaults(const std::filesystem::path& model);

}  // namespace headrace
