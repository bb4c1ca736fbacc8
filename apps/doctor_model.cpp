#include "doctor_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <string_view>

#include "headrace/core/human_bytes.h"
#include "headrace/decoding/decoding_strategy.h"
#include "headrace/llm/llm.h"
#include "headrace/llm/model_need.h"
#include "headrace/text/json_string.h"
#include "prompt.h"

namespace headrace::app {
namespace {

struct Report {
  ModelSummary model;
  ModelNeed need;
  std::string_view strategy;
  int32_t context = 0;  // that generate has without -c
  bool chat_template = false;
};

bool fits(const Report& r, const MachineLimits& on) { return r.need.of(r.context) <= on.free_bytes; }

// Tokens for which memory suffices, at most the model's; 0: the weights do not fit.
int64_t most_context(const Report& r, const MachineLimits& on) {
  const int64_t left = on.free_bytes - r.need.of(0), all = r.model.info.context_length;
  if (left < 0) return 0;
  return r.need.per_token > 0 ? std::min(left / r.need.per_token / kDefaultPageSize * kDefaultPageSize, all) : all;
}

// Each reads all weights that it multiplies once.
double passes_per_s(const Report& r, const MachineLimits& on) {
  return on.read_bytes_per_s / r.model.info.bytes_read(1);
}

Report report_of(const std::filesystem::path& directory) {
  tokenizer_of(directory, {});  // which may be broken, too
  Report r{.model = model_summary(read_description(directory), {}), .chat_template = has_chat_template(directory)};
  r.need = need_of(r.model.info);
  r.strategy = default_strategy(r.model.info.diffusion);
  r.context = std::min(r.model.info.context_length, kDefaultContext);
  return r;
}

std::string fit_text(const Report& r, const MachineLimits& on) {
  const std::string room = fmt::format("{} free on {}", human_bytes(on.free_bytes), on.device);
  const std::string wanted = fmt::format("{} for a context of {} tokens", human_bytes(r.need.of(r.context)), r.context);
  if (fits(r, on)) return fmt::format("fits: {}, {}", wanted, room);
  const int64_t most = most_context(r, on);
  if (most == 0) return fmt::format("does not fit: {} of weights, {}", human_bytes(r.need.weights), room);
  return fmt::format("fits with -c {} or less: {}, {}", most, wanted, room);
}

std::string speed_text(const Report& r, const MachineLimits& on) {
  const char* unit = r.model.info.diffusion ? "forward passes/s (a pass decides several tokens)" : "tokens/s";
  const double rate = passes_per_s(r, on);
  return fmt::format("about {:.{}f} {} for one request on {}: each reads {} at {:.1f} GB/s", rate, rate < 10 ? 1 : 0,
                     unit, on.device, human_bytes(static_cast<int64_t>(r.model.info.bytes_read(1))),
                     on.read_bytes_per_s / 1e9);
}

std::string lines_of(const Report& r, std::span<const MachineLimits> machines) {
  const ModelInfo& info = r.model.info;
  const std::string states =
      r.need.per_request > 0 ? fmt::format(", and {} of states per request", human_bytes(r.need.per_request)) : "";
  std::string lines = fmt::format(
      "model    {}, {} parameters, {} of weights, computed in {}\n"
      "layers   {}, {} of them Gated DeltaNet\n"
      "decodes  {}\n"
      "chat     {}\n"
      "context  {} tokens; {} of keys and values per token{}\n",
      info.architecture, count_text(r.model.parameters), human_bytes(r.need.weights), name_of(info.dtype),
      info.num_layers, info.num_gdn_layers, r.strategy,
      r.chat_template ? "has a template, which generate --chat applies" : "no template: it completes texts",
      info.context_length, human_bytes(r.need.per_token), states);
  for (const MachineLimits& on : machines)
    lines += fmt::format("memory   {}\nspeed    {}\n", fit_text(r, on), speed_text(r, on));
  return lines;
}

std::string json_of(const Report& r, std::span<const MachineLimits> machines) {
  const ModelInfo& info = r.model.info;
  std::vector<std::string> devices;
  for (const MachineLimits& on : machines) {
    devices.push_back(fmt::format(
        R"({{"device": "{}", "free_bytes": {}, "fits": {}, "most_context": {}, "read_gb_s": {:.1f}, "passes_per_s": {:.3f}}})",
        on.device, on.free_bytes, fits(r, on), most_context(r, on), on.read_bytes_per_s / 1e9, passes_per_s(r, on)));
  }
  return fmt::format(
      R"({{"architecture": "{}", "parameters": {}, "weight_bytes": {}, "dtype": "{}", "layers": {}, "gdn_layers": {}, )"
      R"("strategy": "{}", "chat_template": {}, "context_length": {}, "default_context": {}, "kv_bytes_per_token": {}, )"
      R"("state_bytes_per_request": {}, "bytes_per_pass": {:.0f}, "devices": [{}]}})"
      "\n",
      info.architecture, r.model.parameters, r.need.weights, name_of(info.dtype), info.num_layers, info.num_gdn_layers,
      r.strategy, r.chat_template, info.context_length, r.context, r.need.per_token, r.need.per_request,
      info.bytes_read(1), fmt::join(devices, ", "));
}

}  // namespace

std::string count_text(int64_t parameters) {
  const auto p = static_cast<double>(parameters);
  return p >= 1e9 ? fmt::format("{:.1f} billion", p / 1e9) : fmt::format("{:.1f} million", p / 1e6);
}

std::string describe_model(const std::filesystem::path& directory, const Machines& machines, Output output) {
  const Report report = report_of(directory);
  const std::vector<MachineLimits> measured = machines();
  return output == Output::kJson ? json_of(report, measured) : lines_of(report, measured);
}

}  // namespace headrace::app
