#include "headrace/llm/async_llm.h"

#include <utility>

#include "headrace/core/device_runtime.h"
#include "headrace/llm/engine_setup.h"
#include "headrace/llm/naming_model.h"
#include "headrace/llm/sampling_defaults.h"
#include "headrace/llm/start_report.h"
#include "headrace/ops/device_registry.h"

namespace headrace {
namespace {

// Checks options before anything is loaded.
const LLMOptions& checked(const LLMOptions& options) {
  check_options(options);
  return options;
}

}  // namespace

// Reads the tokenizer while the device starts: large ones take as long.
AsyncLLM::AsyncLLM(const ModelDescription& model, const LLMOptions& options)
    : AsyncLLM(model, options, std::async([&] { return tokenizer_of(model.directory, options); })) {}

AsyncLLM::AsyncLLM(const std::filesystem::path& directory, const LLMOptions& options)
    : AsyncLLM(read_description(directory, checked(options).random_weights), options) {}

AsyncLLM::AsyncLLM(const ModelDescription& model, const LLMOptions& options, std::future<Tokenizer> tokenizer)
    : runtime_(open_device(checked(options).device, options.log)),
      matmul_library_(runtime_->start_matmul_library()),
      tokenizer_(tokenizer.get()),
      default_params_(sampling_defaults(model, options.log)),
      model_(load_checked(model, *runtime_, options)),
      memory_plan_(cache_plan(model_->info(), runtime_->device(), options)),
      engine_(std::make_unique<Engine>(*model_, engine_config(*model_, tokenizer_, *runtime_, memory_plan_, options))),
      loop_(*engine_) {
  if (!engine_->runner().on_cpu()) naming(model.directory, [this] { engine_->run_largest_step(); });
  if (options.log) report_start(options, *this);
  thread_ = std::thread([this] {
    while (loop_.wait_for_work()) loop_.run_once();
  });
}

AsyncLLM::~AsyncLLM() {
  loop_.stop();
  thread_.join();
}

int64_t AsyncLLM::submit(GenerationRequest request, EventQueue& events) {
  return loop_.submit(std::move(request), events);
}

void AsyncLLM::drain() {
  loop_.close();
  loop_.wait_until_idle();
}

Engine& AsyncLLM::engine() {
  loop_.wait_until_idle();
  return *engine_;
}

SamplingParams AsyncLLM::default_params(DecodingParams::Schedule schedule) const {
  const auto& diffusion = model_info().diffusion;
  if (schedule == DecodingParams::Schedule::kThreshold || !diffusion) return default_params_;
  const ReferenceDefaults& loop = diffusion->reference;
  return {.temperature = loop.temperature, .top_k = loop.top_k, .top_p = loop.top_p};
}

}  // namespace headrace
