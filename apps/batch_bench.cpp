#include "batch_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <latch>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/measured_limits.h"
#include "output.h"
#include "random_prompt.h"
#include "seconds_since.h"

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

SamplingParams likeliest() {
  return {.max_tokens = kBatchOutput, .temperature = 0, .end_of_text = SamplingParams::EndOfText::kIgnored};
}

struct Load {
  int32_t requests = 0, input_len = 0;
};

// Parameters of the requests; the first one may have others.
struct Wanted {
  std::string_view name = {};
  SamplingParams params = likeliest(), first_params = params;
  bool is_first_masked = false;
};

// Allows every second token.
class EverySecond final : public TokenConstraint {
 public:
  void fill(std::span<uint32_t> bits) override { std::ranges::fill(bits, 0x55555555U); }
  void accept(int32_t /*id*/) override {}
};

std::vector<Wanted> measured() {
  const SamplingParams likely = likeliest();
  SamplingParams drawn = likely, counted = likely, biased = likely;
  drawn.temperature = 0.7F, drawn.top_k = 20, drawn.top_p = 0.95F, drawn.seed = 1;
  SamplingParams penalised = drawn;
  penalised.repetition_penalty = 1.05F;
  counted.frequency_penalty = 0.1F;
  biased.logit_bias = {{7, 1.5F}};
  return {{.name = ""},
          {.name = " drawn", .params = drawn},
          {.name = " drawn penalised", .params = penalised},
          {.name = " counted", .params = counted},
          {.name = " one biased", .params = likely, .first_params = biased},
          {.name = " one masked", .params = likely, .is_first_masked = true}};
}

// Adds requests and runs steps until all of them decode.
void begin_decoding(Engine& engine, const ModelInfo& info, const Load& load, const Wanted& wanted) {
  for (int32_t r = 0; r < load.requests; ++r) {
    EngineRequest request{.prompt = random_prompt(info, load.input_len, static_cast<uint64_t>(r)),
                          .params = r == 0 ? wanted.first_params : wanted.params};
    if (r == 0 && wanted.is_first_masked) request.constraint = std::make_shared<EverySecond>();
    engine.add(std::move(request));
  }
  for (int32_t started = 0; started < load.requests;) {
    for (const StepOutput& out : throw_if_failed(engine.step())) started += out.num_forwards == 1 ? 1 : 0;
  }
  for (int i = 0; i < 4; ++i) throw_if_failed(engine.step());
}

// Runs steps in which every request is to decide a token.
class DecodeStep {
 public:
  DecodeStep(Engine& engine, const Load& load)
      : engine_(engine), load_(load), fewest_(static_cast<size_t>(load.requests)) {}
  void operator()() { fewest_ = std::min(fewest_, throw_if_failed(engine_.step()).size()); }
  void require_all_decided() const {
    HR_REQUIRE(fewest_ == static_cast<size_t>(load_.requests), ErrorCode::kInvalidArgument, "bench model: of ",
               load_.requests, " requests with prompts of ", load_.input_len,
               " tokens the first ended before the last one had begun; try fewer requests or shorter prompts");
  }

 private:
  Engine& engine_;  // not owned
  Load load_;
  size_t fewest_;  // tokens of a step
};

// Median seconds of a step in which every request decides a token.
double step_seconds(Engine& engine, const ModelInfo& info, const Load& load, const Wanted& wanted) {
  begin_decoding(engine, info, load, wanted);
  DecodeStep step(engine, load);
  const double seconds = bench::median_seconds(kBatchOutput / 2, [&step] { step(); });
  step.require_all_decided();
  while (!engine.idle()) throw_if_failed(engine.step());
  return seconds;
}

// Two points at which engines wait for each other.
struct Meetings {
  explicit Meetings(ptrdiff_t engines) : all_decode(engines), all_measured(engines) {}
  std::latch all_decode, all_measured;
};

// One engine's arrival, at the latest when it fails: the others wait for it.
class Arrival {
 public:
  explicit Arrival(std::latch& at) : at_(at) {}
  Arrival(const Arrival&) = delete;
  Arrival& operator=(const Arrival&) = delete;
  ~Arrival() { arrive(); }
  void arrive() {
    if (!std::exchange(arrived_, true)) at_.count_down();
  }

 private:
  std::latch& at_;  // not owned
  bool arrived_ = false;
};

// Tokens in a second of one engine while the others decode as well.
double tokens_per_s(const LLM& llm, const Load& load, Meetings& meetings) {
  Arrival decodes(meetings.all_decode), measured(meetings.all_measured);
  Engine engine(llm.model(), batch_config(llm, load.requests, load.input_len));
  begin_decoding(engine, llm.model_info(), load, {});
  decodes.arrive();
  meetings.all_decode.wait();
  constexpr int kSteps = kBatchOutput / 2;
  DecodeStep step(engine, load);
  const auto start = Clock::now();
  for (int i = 0; i < kSteps; ++i) step();
  const double seconds = seconds_since(start);
  step.require_all_decided();
  measured.arrive();
  while (!meetings.all_measured.try_wait() && !engine.idle()) step();  // a slower engine is measured under full load
  return load.requests * kSteps / seconds;
}

// Tokens in a second of engines at once.
double tokens_per_s(std::span<const std::unique_ptr<LLM>> llms, const Load& all) {
  const auto count = static_cast<int32_t>(llms.size());
  Meetings meetings(count);
  std::vector<std::future<double>> engines;
  for (int32_t i = 0; i < count; ++i) {
    const Load part{.requests = all.requests / count + (i < all.requests % count ? 1 : 0), .input_len = all.input_len};
    engines.push_back(std::async(std::launch::async, [&meetings, part, &llm = *llms[static_cast<size_t>(i)]] {
      return tokens_per_s(llm, part, meetings);
    }));
  }
  double sum = 0;
  for (std::future<double>& one : engines) sum += one.get();
  return sum;
}

void require_decodes_tokens(const ModelInfo& info) {
  HR_REQUIRE(!info.diffusion, ErrorCode::kInvalidArgument,
             "bench model: --parallel is for models that decide one token at a time; bench blocks and canvases measure "
             "those that denoise");
}

}  // namespace

void bench_batch(LLM& llm, int32_t requests, int32_t input_len) {
  require_decodes_tokens(llm.model_info());
  Engine engine(llm.model(), batch_config(llm, requests, input_len));
  for (const Wanted& wanted : measured()) {
    const ModelInfo& info = llm.model_info();
    const double seconds = step_seconds(engine, info, {requests, input_len}, wanted);
    write_out(fmt::format(
        "{{\"name\": \"model decode batch {}{} {} {} {}\", \"median_s\": {:.6f}, \"tokens_per_s\": {:.1f}}}\n",
        requests, wanted.name, info.architecture, info.weight_types(), to_string(llm.device()), seconds,
        requests / seconds));
  }
}

void bench_engines(std::span<const std::unique_ptr<LLM>> llms, int32_t requests, int32_t input_len) {
  const ModelInfo& info = llms[0]->model_info();
  require_decodes_tokens(info);
  const Load load{.requests = requests, .input_len = input_len};
  const double one = tokens_per_s(llms.first(1), load), together = tokens_per_s(llms, load);
  write_out(
      fmt::format("{{\"name\": \"model decode batch {} in {} engines {} {} {}\", \"tokens_per_s\": {:.1f}, "
                  "\"one_engine_tokens_per_s\": {:.1f}, \"share_of_one_engine\": {:.3f}}}\n",
                  requests, llms.size(), info.architecture, info.weight_types(), to_string(llms[0]->device()), together,
                  one, together / one));
}

}  // namespace headrace::app
