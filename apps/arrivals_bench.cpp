#include "arrivals_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <vector>

#include "output.h"
#include "random_prompt.h"
#include "seconds_since.h"

namespace headrace::app {
namespace {

constexpr int32_t kLeastOutput = 64, kMostOutput = 192;
constexpr int kArrivalSteps = 1000;
constexpr double kMostSeconds = 30;

EngineConfig arrivals_config(const LLM& llm, int32_t requests, int32_t input_len) {
  EngineConfig config = llm.config();
  const int32_t page = config.runner.page_size, context = input_len * 3 / 2 + kMostOutput;
  config.max_requests = requests, config.max_context_len = context;
  config.runner.num_pages = requests * ((context + page - 1) / page);
  config.runner.num_states = requests;
  config.runner.times_gaps = true;
  config.keep_text = SchedulerConfig::KeepText::kNo;
  config.vocab = llm.model_info().vocab_size;  // made-up models have a tokenizer of bytes
  return config;
}

// Requests that come: lengths are the same in every run.
class Arrivals {
 public:
  Arrivals(Engine& engine, const ModelInfo& info, int32_t input_len)
      : engine_(engine), info_(info), input_len_(input_len) {}
  void add(int32_t count) {
    for (; count > 0; --count) {
      std::uniform_int_distribution prompt(std::max(1, input_len_ / 2), input_len_ * 3 / 2);
      std::uniform_int_distribution output(kLeastOutput, kMostOutput);
      const int32_t length = prompt(random_);
      engine_.add(
          random_prompt(info_, length, random_()),
          {.max_tokens = output(random_), .temperature = 0, .end_of_text = SamplingParams::EndOfText::kIgnored});
    }
  }

 private:
  Engine& engine_;         // not owned
  const ModelInfo& info_;  // not owned
  int32_t input_len_;
  std::mt19937_64 random_{1};
};

double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size() - 1));
  std::ranges::nth_element(values, at);
  return *at;
}

// Runs a step, and lets another request come for each that ends. Returns the step's tokens.
int64_t step(Engine& engine, Arrivals& arrivals) {
  int64_t tokens = 0;
  for (const StepOutput& out : throw_if_failed(engine.step())) {
    ++tokens;
    if (out.finish_reason) arrivals.add(1);
  }
  return tokens;
}

}  // namespace

void bench_arrivals(LLM& llm, int32_t requests, int32_t input_len) {
  const ModelInfo& info = llm.model_info();
  HR_REQUIRE(!info.diffusion, ErrorCode::kInvalidArgument,
             "bench arrivals is for models that decide one token at a time; bench blocks and canvases measure those "
             "that denoise");
  Engine engine(llm.model(), arrivals_config(llm, requests, input_len));
  Arrivals arrivals(engine, info, input_len);
  arrivals.add(requests);
  for (int64_t begun = 0; begun < int64_t{4} * requests;) begun += step(engine, arrivals);  // until outputs are mixed
  engine.runner().take_gaps();
  const EngineCounters before = engine.counters();
  std::vector<double> seconds;
  const auto start = Clock::now();
  for (int i = 0; i < kArrivalSteps && (i < 8 || seconds_since(start) < kMostSeconds); ++i) {
    const auto began = Clock::now();
    step(engine, arrivals);
    seconds.push_back(seconds_since(began));
  }
  const double all = seconds_since(start);
  const EngineCounters& after = engine.counters();
  const std::vector<double> gaps = engine.runner().take_gaps();
  write_out(fmt::format(
      "{{\"name\": \"model arrivals {} requests {} {} {}\", \"median_s\": {:.6f}, \"tokens_per_s\": {:.1f}, "
      "\"prompt_rows_share\": {:.3f}, \"host_gap_us\": {:.1f}, \"host_gap_p99_us\": {:.1f}}}\n",
      requests, info.architecture, info.weight_types(), to_string(llm.device()), quantile(seconds, 0.5),
      static_cast<double>(after.tokens - before.tokens) / all,
      1 - static_cast<double>(after.tokens - before.tokens) / static_cast<double>(after.rows - before.rows),
      1e6 * quantile(gaps, 0.5), 1e6 * quantile(gaps, 0.99)));
}

}  // namespace headrace::app
