// How a model's makers want its tokens drawn.
#pragma once
#include <filesystem>

#include "headrace/core/log.h"
#include "headrace/request/sampling_params.h"

namespace headrace {

// What generation_config.json in `model` says of temperature, top_k, top_p, min_p and repetition_penalty; the rest, and
// all of it without that file, as SamplingParams has it. "do_sample": false is temperature 0, "top_k": -1 all tokens
// (as vLLM has it), "top_p": 0 the most likely one (as transformers has it). Another value that validate() refuses, or
// of another type, is left out with a warning to `log`: requests may state one of their own. Error kModelFile for a
// file that is no JSON object.
SamplingParams sampling_defaults(const std::filesystem::path& model, const LogCallback& log);

}  // namespace headrace
