// A diffusion model's decoding, in a request: "headrace": {"decoding": {...}}.
#pragma once
#include <string>

#include "headrace/request/decoding_params.h"

namespace headrace {

class JsonNode;

// Reads the members of `decoding` into `params`. Throws RequestError 400, also for an unknown member. The engine
// refuses what the strategy does not read.
void read_decoding(DecodingParams& params, const JsonNode& decoding);

std::string decoding_schema();  // of the object, in JSON

}  // namespace headrace
