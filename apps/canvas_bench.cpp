#include "canvas_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "device_limits.h"
#include "output.h"
#include "random_prompt.h"
#include "seconds_since.h"

namespace headrace::app {
namespace {

constexpr int32_t kCanvasOutput = 64, kContext = 1024;
constexpr int32_t kCanvasSteps = 12;  // at most, of a canvas that is denoised anew in each of them
constexpr int32_t kPrompts[] = {64, 192, 448};

EngineConfig canvas_config(const LLM& llm, const std::string& strategy, RunnerConfig::Graphs graphs) {
  EngineConfig config = llm.config();
  config.strategy = strategy;
  config.vocab = 0;  // the model's: random weights come without a tokenizer
  config.max_requests = 1;
  config.max_context_len = kContext;
  config.runner.num_pages = kContext / config.runner.page_size + 1;
  config.runner.max_tokens = kContext;
  config.least_step_rows.reset();
  config.runner.graphs = graphs;
  return config;
}

// Those that run more than one block behind the cache; none: it has only such.
std::vector<std::string> strategies_of(const std::optional<DiffusionInfo>& model) {
  if (!model) return {};
  if (model->attention == DiffusionInfo::Attention::kFull) {
    const std::vector<std::string_view> all = compared_strategies(*model);
    return {all.begin(), all.end()};
  }
  const std::string_view own = default_strategy(model);
  return own == "multi_bd" ? std::vector<std::string>{} : std::vector{std::string(own)};
}

// Medians by the rows of a step, without each request's first steps.
std::map<int64_t, double> measured_steps(Engine& engine, const ModelInfo& info, int32_t prompt) {
  constexpr int kWarm = 2;
  SamplingParams params{
      .max_tokens = kCanvasOutput, .temperature = 0, .end_of_text = SamplingParams::EndOfText::kIgnored};
  if (engine.config().strategy == "diffusion_gemma") {
    params.temperature = 1;
    params.decoding.schedule = DecodingParams::Schedule::kReference;
    params.decoding.steps = kCanvasSteps;
  } else {
    params.decoding.rule = DecodingParams::Rule::kLeftmost;
  }
  engine.add(random_prompt(info, prompt, 1), params);
  for (int i = 0; i < kWarm; ++i) throw_if_failed(engine.step());
  std::map<int64_t, std::vector<double>> seconds;
  while (!engine.idle()) {
    const int64_t rows = engine.counters().rows;
    const auto start = Clock::now();
    throw_if_failed(engine.step());
    seconds[engine.counters().rows - rows].push_back(seconds_since(start));
  }
  std::map<int64_t, double> medians;
  for (auto& [rows, all] : seconds) {
    const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
    std::ranges::nth_element(all, middle);
    medians[rows] = *middle;
  }
  return medians;
}

}  // namespace

void bench_canvases(LLM& llm) {
  const ModelInfo& info = llm.model_info();
  HR_REQUIRE(llm.device().type != DeviceType::kCPU, ErrorCode::kUnsupported,
             "bench canvases: it measures a GPU's denoise steps; give --device cuda");
  const std::vector<std::string> strategies = strategies_of(info.diffusion);
  HR_REQUIRE(!strategies.empty(), ErrorCode::kUnsupported, "bench canvases: ", info.architecture,
             " has blocks behind a cache at most, which bench blocks measures");
  const DeviceLimits limits = measured_limits(*llm.config().runner.runtime, llm.config().runner.context);
  for (const std::string& strategy : strategies) {
    for (const auto graphs : {RunnerConfig::Graphs::kOff, RunnerConfig::Graphs::kPreferred}) {
      const auto start = Clock::now();
      Engine engine(llm.model(), canvas_config(llm, strategy, graphs));
      const double start_s = seconds_since(start);
      const auto& failed = engine.runner().failed_capture();
      HR_REQUIRE(!failed, ErrorCode::kOutOfMemory, "bench canvases: there are no graphs to measure: ", *failed);
      for (const int32_t prompt : kPrompts) {
        for (const auto& [rows, step_s] : measured_steps(engine, info, prompt)) {
          const double floor = step_floor(info, limits, static_cast<double>(rows));
          write_out(
              fmt::format("{{\"name\": \"{} {} rows of {} {}{}\", \"step_s\": {:.6f}, \"over_floor\": {:.3f}, "
                          "{}\"engine_start_s\": {:.3f}}}\n",
                          strategy, rows, prompt + kCanvasOutput, info.architecture,
                          graphs == RunnerConfig::Graphs::kOff ? ", no graphs" : "", step_s, step_s / floor,
                          floor_of(info), start_s));
        }
      }
      write_out(fmt::format("{{\"name\": \"{} ran\", \"steps\": {}, \"graph_steps\": {}}}\n", strategy,
                            engine.counters().steps, engine.runner().num_graph_steps()));
    }
  }
}

}  // namespace headrace::app
