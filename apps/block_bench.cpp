#include "block_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "device_limits.h"
#include "output.h"
#include "random_prompt.h"
#include "seconds_since.h"

#include "headrace/core/device_runtime.h"

namespace headrace::app {
namespace {

constexpr int32_t kBlocksOutput = 256;
constexpr int64_t kWarmUp = 32;  // steps: a card that rested is slower by up to 3 % in the first 20

SamplingParams scripted(int32_t block_size) {
  SamplingParams params{
      .max_tokens = kBlocksOutput, .temperature = 0, .end_of_text = SamplingParams::EndOfText::kIgnored};
  params.decoding.threshold = 1;  // nothing is above it
  params.decoding.max_passes = std::max(1, block_size * 3 / 4);
  return params;
}

// scripted() with sampling, as generation_config.json of most models has it.
SamplingParams scripted_draws(int32_t block_size) {
  SamplingParams params = scripted(block_size);
  params.temperature = 0.7F, params.top_k = 20, params.top_p = 0.95F, params.seed = 1;
  return params;
}

EngineConfig blocks_config(const LLM& llm, int32_t requests, int32_t input_len, int32_t block_size) {
  EngineConfig config = llm.config();
  const int32_t page = config.runner.page_size, context = input_len + kBlocksOutput + 2 * block_size;
  config.vocab = llm.model_info().vocab_size;  // made-up models have a tokenizer of bytes
  config.max_requests = requests;
  config.max_context_len = context;
  config.runner.num_pages = requests * ((context + page - 1) / page) + 1;
  config.runner.max_tokens = std::max<int64_t>(2048, int64_t{2} * requests * block_size);
  config.least_step_rows.reset();
  return config;
}

struct Measured {
  double step_s = 0, drawn_step_s = 0, tokens_per_s = 0, rows = 0, tokens_per_forward = 0;
  double key_bytes = 0;  // cached keys and values that a step reads
};

// Returns the bytes of one token's keys and values in all layers.
double token_bytes(Engine& engine) {
  const RunnerConfig& runner = engine.config().runner;
  return static_cast<double>(engine.runner().pool_bytes()) / static_cast<double>(runner.num_pages * runner.page_size);
}

// The engine with all requests past their prompts, until the first of them ends.
void measure_engine(Engine& engine, const ModelInfo& info, int32_t requests, int32_t input_len,
                    const SamplingParams& params, Measured& m) {
  std::vector<int64_t> ids;
  ids.reserve(static_cast<size_t>(requests));
  for (int32_t r = 0; r < requests; ++r)
    ids.push_back(engine.add(random_prompt(info, input_len, static_cast<uint64_t>(r)), params));
  const int64_t none = engine.counters().tokens;
  while (std::ranges::any_of(ids, [&](int64_t id) { return engine.num_forwards(id) == 0; }))
    throw_if_failed(engine.step());
  const int64_t warm = engine.counters().steps + kWarmUp;
  while (engine.counters().steps < warm) throw_if_failed(engine.step());
  const EngineCounters before = engine.counters();
  const auto start = Clock::now();
  bool ended = false;
  while (!ended) {
    for (const StepOutput& out : throw_if_failed(engine.step())) ended |= out.finish_reason.has_value();
  }
  const double seconds = seconds_since(start);
  const EngineCounters after = engine.counters();
  const auto steps = static_cast<double>(after.steps - before.steps);
  (params.temperature > 0 ? m.drawn_step_s : m.step_s) = seconds / steps;
  while (!engine.idle()) throw_if_failed(engine.step());
  if (params.temperature > 0) return;
  m.rows = static_cast<double>(after.rows - before.rows) / steps;
  m.tokens_per_s = static_cast<double>(after.tokens - before.tokens) / seconds;
  m.tokens_per_forward = static_cast<double>(after.tokens - before.tokens) / steps / requests;
  const double written = static_cast<double>(before.tokens + after.tokens - 2 * none) / 2;  // in the middle of it
  m.key_bytes = (requests * static_cast<double>(input_len) + written) * token_bytes(engine);
}

void report(const LLM& llm, int32_t requests, int32_t input_len, const DeviceLimits& limits, const Measured& m) {
  const ModelInfo& info = llm.model_info();
  const double floor = step_floor(info, limits, m.rows), keys = m.key_bytes / limits.copy_rate;
  write_out(
      fmt::format("{{\"name\": \"blocks batch {} behind {} tokens {} {}\", \"input_len\": {}, \"step_s\": {:.6f}, "
                  "\"drawn_step_s\": {:.6f}, \"rows\": {:.1f}, {}"
                  "\"copy_rate\": {:.4g}, \"matmul_rate\": {:.4g}, \"floor_s\": {:.6f}, \"over_floor\": {:.3f}, "
                  "\"keys_s\": {:.6f}, \"over_floor_and_keys\": {:.3f}, "
                  "\"tokens_per_forward\": {:.3f}, \"tokens_per_s\": {:.1f}}}\n",
                  requests, input_len, info.architecture, name_of(info.dtype), input_len, m.step_s, m.drawn_step_s,
                  m.rows, floor_of(info), limits.copy_rate, limits.matmul_rate, floor, m.step_s / floor, keys,
                  m.step_s / (floor + keys), m.tokens_per_forward, m.tokens_per_s));
}

}  // namespace

void bench_blocks(LLM& llm, std::vector<int32_t> counts, int32_t input_len) {
  if (counts.empty()) counts = {1, 128};
  HR_REQUIRE(llm.device().type != DeviceType::kCPU, ErrorCode::kUnsupported,
             "bench blocks: it measures a GPU's denoise steps; give --device cuda");
  const std::optional<DiffusionInfo>& diffusion = llm.model_info().diffusion;
  HR_REQUIRE(diffusion && diffusion->attention == DiffusionInfo::Attention::kBlockCausal, ErrorCode::kUnsupported,
             "bench blocks: ", llm.model_info().architecture, " has no blocks behind a cache");
  const DeviceLimits limits = measured_limits(*llm.config().runner.runtime, llm.config().runner.context);
  const int32_t block_size = diffusion->block_size;
  for (const int32_t requests : counts) {
    Engine engine(llm.model(), blocks_config(llm, requests, input_len, block_size));
    Measured m;
    measure_engine(engine, llm.model_info(), requests, input_len, scripted(block_size), m);
    measure_engine(engine, llm.model_info(), requests, input_len, scripted_draws(block_size), m);
    report(llm, requests, input_len, limits, m);
  }
}

}  // namespace headrace::app
