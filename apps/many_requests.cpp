#include "many_requests.h"

#include <algorithm>
#include <limits>

#include "headrace/core/host_memory.h"
#include "headrace/gguf/gguf_file.h"
#include "headrace/hub/gguf_choice.h"
#include "headrace/ops/cuda_module.h"
#include "headrace/ops/device_registry.h"
#include "model_need.h"
#include "option_values.h"

namespace headrace::app {
namespace {

namespace fs = std::filesystem;

// Requests of a chat's length that half of the free memory holds; from some number on, more make no step faster.
int32_t default_num_seqs(const ModelInfo& model, const LLMOptions& options) {
  constexpr int64_t kTokens = 1024, kMostOnCpu = 32, kMostOnDevice = 256;
  const Device device = open_device(options.device, options.log)->device();
  const bool on_cpu = device.type == DeviceType::kCPU;
  const int64_t free = on_cpu ? available_host_memory().value_or(std::numeric_limits<int64_t>::max())
                              : cuda_module().free_bytes(device.index);
  const ModelNeed need = need_of(model, options.kv_dtype);
  const int64_t budget = options.cache_memory.value_or((free - need.weights) / 2);
  const int64_t fitting = budget / std::max<int64_t>(1, need.per_request + kTokens * need.per_token);
  return static_cast<int32_t>(std::clamp<int64_t>(fitting, 1, on_cpu ? kMostOnCpu : kMostOnDevice));
}

}  // namespace

void add_many_requests_flags(CLI::App& command, ManyRequestsFlags& f) {
  command
      .add_option("--max-num-seqs", f.max_num_seqs,
                  "requests that run at a time (default: as many of 1024 tokens as half of the free memory holds, at "
                  "most 32 on a CPU and 256 on a GPU)")
      ->check(integer_in(1, 4096));
  command
      .add_option("--served-model-name", f.served_names,
                  "names that a request's model may have (default: MODEL); responses have the first one")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name(kName);
}

std::vector<std::string> model_names(const ManyRequestsFlags& flags, const ModelFlags& model,
                                     const fs::path& directory) {
  if (!flags.served_names.empty()) return flags.served_names;
  if (is_gguf_path(directory)) return {std::string(gguf_stem(directory.filename().string())), model.model};
  std::string given = model.model.empty() ? directory.filename().string() : model.model;
  while (given.size() > 1 && given.ends_with('/')) given.pop_back();
  const std::string last = fs::path(given).filename();
  return last == given ? std::vector{given} : std::vector{given, last};
}

LLMOptions for_many_requests(const ManyRequestsFlags& flags, const ModelDescription& model, LLMOptions options) {
  const ModelInfo info = options.random_weights ? stated_info(model, {.dtype = options.dtype})
                                                : model_summary(model, {.dtype = options.dtype}).info;
  options.max_num_seqs = flags.max_num_seqs ? *flags.max_num_seqs : default_num_seqs(info, options);
  return options;
}

}  // namespace headrace::app
