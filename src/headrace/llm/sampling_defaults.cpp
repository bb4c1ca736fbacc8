#include "headrace/llm/sampling_defaults.h"

#include "headrace/base/file_exists.h"
#include "headrace/weights/config_file.h"

namespace headrace {

SamplingParams sampling_defaults(const std::filesystem::path& model) {
  SamplingParams params;
  const std::filesystem::path path = model / "generation_config.json";
  if (!file_exists(path)) return params;
  const JsonValue file = read_json_file(path);
  const auto number = [&file](const char* key, float& value) {
    value = static_cast<float>(file.float_or(key, static_cast<double>(value)));
  };
  number("temperature", params.temperature);
  number("top_p", params.top_p);
  number("min_p", params.min_p);
  number("repetition_penalty", params.repetition_penalty);
  params.top_k = static_cast<int32_t>(file.int_or("top_k", params.top_k, 0, 1 << 30));
  if (!file.bool_or("do_sample", true)) params.temperature = 0;
  try {
    validate(params);
  } catch (const Error& e) {
    throw Error(ErrorCode::kModelFile, str(path.string(), ": ", e.what()));
  }
  return params;
}

}  // namespace headrace
