// Default sampling parameters of a model.
#pragma once
#include "headrace/core/log.h"
#include "headrace/request/sampling_params.h"
#include "headrace/weights/model_description.h"

namespace headrace {

// Takes temperature, top_k, top_p, min_p and repetition_penalty from generation_config.json; other fields, or all
// without that file, are SamplingParams' defaults. "do_sample": false means temperature 0, "top_k": -1 all tokens (as
// in vLLM), "top_p": 0 the most likely one (as in transformers). Skips a value that validate() refuses, or of another
// type, with a warning to `log`: requests may set their own. Error kModelFile for a file that is no JSON object.
SamplingParams sampling_defaults(const ModelDescription& model, const LogCallback& log);

}  // namespace headrace
