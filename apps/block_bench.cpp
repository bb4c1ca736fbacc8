#include "block_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "device_limits.h"
#include "output.h"
#include "seconds_since.h"

#include "headrace/core/device_runtime.h"

namespace headrace::app {
namespace {

constexpr int32_t kBlocksOutput = 256, kMeasuredSteps = 96;
constexpr size_t kGapSteps = 12;  // a block's three passes differ: so many have each as often one way as the other
constexpr size_t kLatePerGap = kGapSteps / 4;  // steps of each kGapSteps that are started late
constexpr int64_t kWarmUp = 32;                // steps: a card that rested is slower by up to 3 % in the first 20

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
  return config;
}

struct Measured {
  double step_s = 0, drawn_step_s = 0, device_s = 0, host_gap_s = 0, tokens_per_s = 0, rows = 0, tokens_per_forward = 0;
  double key_bytes = 0;  // cached keys and values that a step reads
};

// Returns the bytes of one token's keys and values in all layers.
double token_bytes(Engine& engine) {
  const RunnerConfig& runner = engine.config().runner;
  return static_cast<double>(engine.runner().pool_bytes()) / static_cast<double>(runner.num_pages * runner.page_size);
}

// The engine with all requests past their prompts, until the first of them ends.
void measure_engine(Engine& engine, int32_t requests, int32_t input_len, const SamplingParams& params, Measured& m) {
  for (int32_t r = 0; r < requests; ++r)
    engine.add(std::vector<int32_t>(static_cast<size_t>(input_len), 5 + r), params);
  const int64_t warm = engine.counters().device_steps + kWarmUp, none = engine.counters().tokens;
  while (!engine.idle() && engine.counters().device_steps < warm) engine.step();
  HR_REQUIRE(!engine.idle(), ErrorCode::kUnsupported,
             "bench blocks: steps go through the host: ", engine.runner().describe());
  const EngineCounters before = engine.counters();
  const auto start = Clock::now();
  bool ended = false;
  while (!ended) {
    for (const StepOutput& out : engine.step()) ended |= out.finish_reason.has_value();
  }
  const double seconds = seconds_since(start);
  const EngineCounters after = engine.counters();
  const auto steps = static_cast<double>(after.steps - before.steps);
  (params.temperature > 0 ? m.drawn_step_s : m.step_s) = seconds / steps;
  while (!engine.idle()) engine.step();
  if (params.temperature > 0) return;
  m.rows = static_cast<double>(after.rows - before.rows) / steps;
  m.tokens_per_s = static_cast<double>(after.tokens - before.tokens) / seconds;
  m.tokens_per_forward = static_cast<double>(after.tokens - before.tokens) / steps / requests;
  const double written = static_cast<double>(before.tokens + after.tokens - 2 * none) / 2;  // in the middle of it
  m.key_bytes = (requests * static_cast<double>(input_len) + written) * token_bytes(engine);
}

// Requests in the middle of their output, a third of them at each pass of their blocks.
class Rehearsal {
 public:
  Rehearsal(Engine& engine, int32_t requests, int32_t input_len, int32_t block_size)
      : runner_(engine.runner()),
        limit_(input_len + kBlocksOutput),
        table_(Tensor::zeros(DType::kI32, engine.scheduler().table().page_table().shape())) {
    const int32_t page = engine.config().runner.page_size,
                  begin = input_len + kBlocksOutput / 2 / block_size * block_size / 2,
                  passes = scripted(block_size).decoding.max_passes.value_or(1);
    const auto each = static_cast<int32_t>((limit_ + page - 1) / page);
    batch_.mode = ForwardMode::kExtend;
    for (int32_t r = 0; r < requests; ++r) {
      for (int32_t i = 0; i < each; ++i) table_.data_as<int32_t>()[(r + 1) * table_.dim(1) + i] = r * each + i;
      DenoiseState state{.running = 1, .begin = begin, .num_cached = begin, .limit = limit_, .page_row = r + 1};
      state.rule = {.threshold = 1, .steps = passes};
      state.num_steps = r % passes;
      for (int32_t p = r % passes; p < block_size; ++p) state.set_masked(p, 1), rows_of_logits(r * block_size + p);
      states_.push_back(state);
      pages_.push_back(each);
      add_rows(r, begin, block_size);
    }
    const auto rows = static_cast<int64_t>(ids_.size());
    batch_.input_ids = TensorView(ids_.data(), DType::kI32, {rows});
    batch_.positions = TensorView(positions_.data(), DType::kI32, {rows});
    batch_.attn.write_slots = TensorView(slots_.data(), DType::kI64, {rows});
    batch_.attn.page_table = table_;
    batch_.attn_backend = &runner_.backend();
  }

  // As the engine does it: each step is started when the one before has reported. Records what they report.
  void loop() {
    begin();
    steps_.clear();
    for (int32_t i = 0; i < kMeasuredSteps; ++i) {
      steps_.push_back(runner_.denoise_loop()->wait());
      runner_.next_blocks(steps_.back(), limit_);
      runner_.denoise_loop()->decided();
    }
    runner_.denoise_loop()->wait();
  }
  // Seconds of one of the same steps, all queued at once.
  double queued(DeviceRuntime& runtime) {
    const auto start = begin();
    for (const DenoiseReport& next : steps_) runner_.next_blocks(next, limit_);
    runtime.synchronize();
    return seconds_since(start) / (kMeasuredSteps + 1);
  }
  // The same steps, two of which are started when those before have reported, of the next two only the first is, and so
  // on: seconds that one so started is late, one in each kGapSteps. From one second to the next a device's clock
  // changes by more.
  void find_gaps(std::vector<double>& gaps) {
    begin();
    DenoiseLoop& loop = *runner_.denoise_loop();
    loop.wait();
    auto last = Clock::now();
    for (size_t i = 0; i + kGapSteps <= steps_.size(); i += kGapSteps) {
      double late = 0;
      for (size_t k = i; k < i + kGapSteps; k += 2) {
        const bool each = (k - i) % 4 == 0;
        runner_.next_blocks(steps_[k], limit_);
        if (each) loop.wait();
        runner_.next_blocks(steps_[k + 1], limit_);
        loop.wait();
        const auto now = Clock::now();
        late += (each ? 1 : -1) * std::chrono::duration<double>(now - last).count();
        last = now;
      }
      gaps.push_back(late / double{kLatePerGap});
    }
  }

 private:
  void rows_of_logits(int32_t row) { batch_.logits_rows.push_back(row); }
  void add_rows(int32_t r, int32_t begin, int32_t block_size) {
    batch_.attn.spans.push_back({.q_off = r * block_size,
                                 .q_len = block_size,
                                 .ctx_len = begin,
                                 .phys0 = begin,
                                 .kind = KeySpan::Kind::kBlock,
                                 .block_size = block_size,
                                 .page_row = r + 1});
    for (int32_t p = 0; p < block_size; ++p) {
      ids_.push_back(7), positions_.push_back(begin + p), slots_.push_back(kDoNotStore);
      tokens_.insert(tokens_.end(), 2, 7);
    }
  }
  Clock::time_point begin() {
    runner_.denoise_loop()->load(states_, tokens_);
    const auto start = Clock::now();
    runner_.start_blocks(batch_, pages_);
    return start;
  }

  ModelRunner& runner_;
  int32_t limit_;  // tokens of a request
  Tensor table_;
  ForwardBatch batch_;
  std::vector<int32_t> ids_, positions_, tokens_;
  std::vector<DenoiseReport> steps_;
  std::vector<int64_t> slots_, pages_;
  std::vector<DenoiseState> states_;
};

void measure_idle(Rehearsal& rehearsal, DeviceRuntime& runtime, Measured& m) {
  constexpr int kTurns = 5;
  std::vector<double> device, gaps;
  rehearsal.loop();
  for (int i = 0; i < kTurns; ++i) device.push_back(rehearsal.queued(runtime)), rehearsal.find_gaps(gaps);
  const auto median = [](std::vector<double>& of) {
    std::ranges::sort(of);
    return of[of.size() / 2];
  };
  m.device_s = median(device), m.host_gap_s = median(gaps);
}

void report(const LLM& llm, int32_t requests, int32_t input_len, const DeviceLimits& limits, const Measured& m) {
  const ModelInfo& info = llm.model_info();
  const double floor = step_floor(info, limits, m.rows), keys = m.key_bytes / limits.copy_rate;
  write_out(
      fmt::format("{{\"name\": \"blocks batch {} behind {} tokens {} {}\", \"input_len\": {}, \"step_s\": {:.6f}, "
                  "\"drawn_step_s\": {:.6f}, \"rows\": {:.1f}, {}\"device_step_s\": {:.6f}, \"host_gap_us\": {:.1f}, "
                  "\"copy_rate\": {:.4g}, \"matmul_rate\": {:.4g}, \"floor_s\": {:.6f}, \"over_floor\": {:.3f}, "
                  "\"keys_s\": {:.6f}, \"over_floor_and_keys\": {:.3f}, "
                  "\"tokens_per_forward\": {:.3f}, \"tokens_per_s\": {:.1f}}}\n",
                  requests, input_len, info.architecture, name_of(info.dtype), input_len, m.step_s, m.drawn_step_s,
                  m.rows, floor_of(info), m.device_s, 1e6 * m.host_gap_s, limits.copy_rate, limits.matmul_rate, floor,
                  m.step_s / floor, keys, m.step_s / (floor + keys), m.tokens_per_forward, m.tokens_per_s));
}

}  // namespace

void bench_blocks(LLM& llm, std::vector<int32_t> counts, int32_t input_len) {
  if (counts.empty()) counts = {1, 128};
  HR_REQUIRE(llm.device().type != DeviceType::kCPU, ErrorCode::kUnsupported,
             "bench blocks: it measures a GPU's denoise steps; give --device cuda");
  DeviceRuntime& runtime = *llm.config().runner.runtime;
  const DeviceLimits limits = measured_limits(runtime, llm.config().runner.context);
  const int32_t block_size = llm.model_info().diffusion ? llm.model_info().diffusion->block_size : 1;
  for (const int32_t requests : counts) {
    Engine engine(llm.model(), blocks_config(llm, requests, input_len, block_size));
    Measured m;
    measure_engine(engine, requests, input_len, scripted(block_size), m);
    measure_engine(engine, requests, input_len, scripted_draws(block_size), m);
    Rehearsal rehearsal(engine, requests, input_len, block_size);
    measure_idle(rehearsal, runtime, m);
    report(llm, requests, input_len, limits, m);
  }
}

}  // namespace headrace::app
