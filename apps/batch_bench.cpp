#include "batch_bench.h"

#include <fmt/format.h>

#include <algorithm>

#include "bench/measured_limits.h"
#include "output.h"
#include "random_prompt.h"

namespace headrace::app {
namespace {

constexpr int32_t kBatchOutput = 128;

EngineConfig batch_config(const LLM& llm, int32_t requests, int32_t input_len) {
  EngineConfig config = llm.config();
  const int32_t page = config.runner.page_size, context = input_len + kBatchOutput;
  config.max_requests = requests, config.max_context_len = context;
  config.runner.num_pages = requests * ((context + page - 1) / page);
  config.runner.num_states = requests;
  config.runner.max_tokens = std::max<int64_t>(2048, requests);
  config.least_step_rows.reset();
  config.keep_text = SchedulerConfig::KeepText::kNo;
  config.vocab = llm.model_info().vocab_size;  // made-up models have a tokenizer of bytes
  return config;
}

// Median seconds of a step in which every request decides a token.
double step_seconds(Engine& engine, const ModelInfo& info, int32_t requests, int32_t input_len,
                    const SamplingParams& params) {
  for (int32_t r = 0; r < requests; ++r) engine.add(random_prompt(info, input_len, static_cast<uint64_t>(r)), params);
  for (int32_t started = 0; started < requests;) {
    for (const StepOutput& out : throw_if_failed(engine.step())) started += out.num_forwards == 1 ? 1 : 0;
  }
  for (int i = 0; i < 4; ++i) throw_if_failed(engine.step());
  auto fewest = static_cast<size_t>(requests);
  const double seconds = bench::median_seconds(
      kBatchOutput / 2, [&] { fewest = std::min(fewest, throw_if_failed(engine.step()).size()); });
  HR_REQUIRE(fewest == static_cast<size_t>(requests), ErrorCode::kInvalidArgument, "bench model: of ", requests,
             " requests with prompts of ", input_len, " tokens the first ended before the last one had begun; try ",
             "fewer requests or shorter prompts");
  while (!engine.idle()) throw_if_failed(engine.step());
  return seconds;
}

}  // namespace

void bench_batch(LLM& llm, int32_t requests, int32_t input_len) {
  HR_REQUIRE(!llm.model_info().diffusion, ErrorCode::kInvalidArgument,
             "bench model: --parallel is for models that decide one token at a time; bench blocks and canvases measure "
             "those that denoise");
  Engine engine(llm.model(), batch_config(llm, requests, input_len));
  const SamplingParams likely{
      .max_tokens = kBatchOutput, .temperature = 0, .end_of_text = SamplingParams::EndOfText::kIgnored};
  SamplingParams drawn = likely;
  drawn.temperature = 0.7F, drawn.top_k = 20, drawn.top_p = 0.95F, drawn.seed = 1;
  SamplingParams penalised = drawn;
  penalised.repetition_penalty = 1.05F;
  for (const SamplingParams& params : {likely, drawn, penalised}) {
    const ModelInfo& info = llm.model_info();
    const double seconds = step_seconds(engine, info, requests, input_len, params);
    write_out(fmt::format(
        "{{\"name\": \"model decode batch {}{}{} {} {} {}\", \"median_s\": {:.6f}, \"tokens_per_s\": {:.1f}}}\n",
        requests, params.temperature > 0 ? " drawn" : "", params.repetition_penalty == 1 ? "" : " penalised",
        info.architecture, name_of(info.dtype), to_string(llm.device()), seconds, requests / seconds));
  }
}

}  // namespace headrace::app
