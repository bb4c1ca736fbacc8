#include "headrace/llm/sampling_defaults.h"

#include <algorithm>
#include <utility>

#include "headrace/gguf/gguf_file.h"

namespace headrace {
namespace {

constexpr float kLeastTopP = 1e-6f;  // keeps only the most likely token

using Read = void (*)(const JsonValue&, SamplingParams&);

float number_of(const JsonValue& value) { return static_cast<float>(value.as_float()); }

// -1 means all tokens, as in vLLM.
int32_t top_k_of(const JsonValue& value) { return std::max(0, static_cast<int32_t>(value.as_int(-1, 1 << 30))); }

float top_p_of(const JsonValue& value) {
  const float share = number_of(value);
  return share == 0 ? kLeastTopP : share;
}

constexpr std::pair<const char*, Read> kFields[] = {
    {"temperature", [](const JsonValue& v, SamplingParams& p) { p.temperature = number_of(v); }},
    {"top_k", [](const JsonValue& v, SamplingParams& p) { p.top_k = top_k_of(v); }},
    {"top_p", [](const JsonValue& v, SamplingParams& p) { p.top_p = top_p_of(v); }},
    {"min_p", [](const JsonValue& v, SamplingParams& p) { p.min_p = number_of(v); }},
    {"repetition_penalty", [](const JsonValue& v, SamplingParams& p) { p.repetition_penalty = number_of(v); }},
    {"do_sample", [](const JsonValue& v, SamplingParams& p) { p.temperature = v.as_bool() ? p.temperature : 0; }}};

}  // namespace

SamplingParams sampling_defaults(const ModelDescription& model, const LogCallback& log) {
  SamplingParams params;
  const JsonValue* file = model.generation_config();
  if (file == nullptr) return params;
  const bool is_file = is_gguf_path(model.directory);
  const std::filesystem::path path = is_file ? model.directory : model.directory / "generation_config.json";
  for (const auto& [key, read] : kFields) {
    const JsonValue* value = file->find(key);
    if (value == nullptr) continue;
    SamplingParams with = params;
    try {
      read(*value, with);
      validate(with);
      params = with;
    } catch (const Error& e) {
      const std::string_view what = e.what();
      const std::string named = what.starts_with(path.string()) ? std::string(what) : str(path.string(), ": ", what);
      if (log) log(LogLevel::kWarning, str(named, "; this default is ignored"));
    }
  }
  return params;
}

}  // namespace headrace
