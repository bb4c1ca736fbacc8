// The fields that requests of several APIs share, and their table.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/request/sampling_params.h"

namespace headrace {

class JsonNode;

inline constexpr int32_t kMostTokens = 1 << 30, kMostChoices = 64, kMostShownLogprobs = 20;

struct ApiRequest {
  std::string model = {};      // empty: not stated
  SamplingParams params = {};  // with the log-probabilities that the response shows
  int32_t n = 1;
  bool no_output = false;                      // max_tokens is 0: params.max_tokens is 1, and the response has none
  bool stream = false, include_usage = false;  // pieces as they come; the usage at their end
  bool shows_denoising = false;                // each step of a block, as a piece of the stream
  bool explains_cache = false;                 // why the prompt left the prefix cache
  std::optional<int32_t> logprobs = {};        // likeliest tokens beside each one; absent: no log-probabilities
  bool skip_special_tokens = true;             // in the choices' texts
  std::string cache_salt = {};
  std::vector<std::string> unknown_fields = {};  // which the reader has ignored
};

// A field that a reader of requests takes, in words and as a JSON schema.
struct FieldDescription {
  std::string_view name;
  std::string expected;
  std::string_view otherwise;  // its value if it is absent or null
  std::string schema;
  bool is_supported = true;
};

}  // namespace headrace
