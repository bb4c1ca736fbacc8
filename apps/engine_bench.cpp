#include "engine_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <utility>

#include "empty_engine.h"
#include "headrace/llm/engine_loop.h"
#include "output.h"
#include "random_prompt.h"
#include "thread_cpu_time.h"

namespace headrace::app {
namespace {

constexpr int32_t kStepsMeasured = 101, kWarmUpSteps = 4, kAdmissionsMeasured = 15;
constexpr int32_t kRowsPerStep = 1 << 16;  // prompts begin in few steps
constexpr int32_t kCachedStates = 8;       // the default of LLMOptions
constexpr int32_t kGoalRunning = 256, kGoalCached = 1000, kShortLen = 256, kGoalAdmissionLen = 8192;
constexpr double kGoalDenseUs = 60, kGoalHybridUs = 80, kGoalGrowth = 0.05, kGoalAdmissionUs = 60, kGoalLoopUs = 10;

using Kind = EmptyEngineKind;
constexpr std::array kKinds = {
    Kind{Kind::Layers::kDense, Kind::Path::kCpu}, Kind{Kind::Layers::kDense, Kind::Path::kFakeDevice},
    Kind{Kind::Layers::kHybrid, Kind::Path::kCpu}, Kind{Kind::Layers::kHybrid, Kind::Path::kFakeDevice}};

SamplingParams most_likely(int32_t max_tokens) {
  return {.max_tokens = max_tokens, .temperature = 0, .end_of_text = SamplingParams::EndOfText::kIgnored};
}

int32_t pages_for(int64_t tokens, int32_t page_size) {
  return static_cast<int32_t>((tokens + page_size - 1) / page_size);
}

EngineConfig engine_config(const EngineBenchConfig& bench, int32_t requests, int32_t context, int32_t rows) {
  EngineConfig config{.max_requests = requests, .max_context_len = context};
  config.runner.kernel_set = bench.kernel_set;
  config.runner.context.threads = 1;
  config.runner.page_size = bench.page_size;
  config.runner.num_pages = requests * pages_for(context, bench.page_size);
  config.runner.num_states = requests + kCachedStates;
  config.runner.max_tokens = rows;
  config.keep_text = SchedulerConfig::KeepText::kYes;
  return config;
}

// Runs steps until `requests` new ones have their first token. Returns the prompt tokens that the last one reused.
int32_t start(Engine& engine, int32_t requests) {
  int32_t reused = 0;
  while (requests > 0) {
    for (const StepOutput& out : engine.step()) {
      if (out.num_forwards != 1) continue;
      --requests;
      reused = out.num_reused;
    }
  }
  return reused;
}

struct StepCase {
  int32_t running = 1, input_len = 1;
};

// An engine whose requests are past their prompts, for kStepsMeasured steps.
class RunningRequests {
 public:
  RunningRequests(const EngineBenchConfig& bench, Kind kind, const StepCase& of)
      : running_(of.running), empty_(kind, config_of(bench, of)) {
    for (int32_t r = 0; r < running_; ++r) {
      engine().add(random_prompt(empty_.model_info(), of.input_len, static_cast<uint64_t>(r)),
                   most_likely(output_len(of)));
    }
    start(engine(), running_);
    for (int i = 0; i < kWarmUpSteps; ++i) engine().step();
  }

  double step_microseconds() {
    size_t tokens = 0;
    const double microseconds = cpu_microseconds_of([&] { tokens = engine().step().size(); });
    HR_REQUIRE(std::cmp_equal(tokens, running_), ErrorCode::kInternal, "bench engine: a step has ", tokens,
               " tokens, expected one of each of ", running_, " requests");
    return microseconds;
  }

  // The first request runs until all have begun and the last step is measured.
  static int32_t output_len(const StepCase& of) {
    const auto steps_to_start = static_cast<int32_t>(int64_t{of.running} * of.input_len / kRowsPerStep + 2);
    return steps_to_start + kWarmUpSteps + kStepsMeasured + 1;
  }
  static EngineConfig config_of(const EngineBenchConfig& bench, const StepCase& of) {
    return engine_config(bench, of.running, of.input_len + output_len(of), kRowsPerStep + of.running);
  }

 private:
  Engine& engine() { return empty_.engine(); }

  int32_t running_;
  EmptyEngine empty_;
};

// As RunningRequests, but submitted to a loop, whose events are taken after each step.
class SubmittedRequests {
 public:
  SubmittedRequests(const EngineBenchConfig& bench, Kind kind, const StepCase& of, int32_t num_queues)
      : running_(of.running),
        empty_(kind, RunningRequests::config_of(bench, of)),
        queues_(static_cast<size_t>(num_queues)) {
    for (int32_t r = 0; r < running_; ++r) {
      loop_.submit({.prompt_ids = random_prompt(empty_.model_info(), of.input_len, static_cast<uint64_t>(r)),
                    .params = most_likely(RunningRequests::output_len(of))},
                   queues_[static_cast<size_t>(r % num_queues)]);
    }
    for (int64_t before = -running_; loop_.stats().tokens - before < running_;) {
      before = loop_.stats().tokens;
      loop_.run_once();
    }
    for (int i = 0; i < kWarmUpSteps; ++i) loop_.run_once();
    take_events();
  }

  double step_microseconds() {
    const double microseconds = cpu_microseconds_of([&] { loop_.run_once(); });
    const size_t tokens = take_events();
    HR_REQUIRE(std::cmp_equal(tokens, running_), ErrorCode::kInternal, "bench engine: a step has ", tokens,
               " tokens, expected one of each of ", running_, " requests");
    return microseconds;
  }

 private:
  size_t take_events() {
    size_t tokens = 0;
    for (EventQueue& queue : queues_) {
      while (const auto event = queue.poll()) tokens += event->outputs.size();
    }
    return tokens;
  }

  int32_t running_;
  EmptyEngine empty_;
  EngineLoop loop_{empty_.engine()};
  std::deque<EventQueue> queues_;
};

struct StepTimes {
  double microseconds = 0;
  std::optional<double> growth;  // over the same requests behind kShortLen tokens
};

// A shared machine is slower in one second than in the next: steps behind long and short prompts take turns.
StepTimes step_times(const EngineBenchConfig& bench, Kind kind, const StepCase& of) {
  RunningRequests requests(bench, kind, of);
  std::optional<RunningRequests> behind_short;
  if (of.running == kGoalRunning && of.input_len > kShortLen)
    behind_short.emplace(bench, kind, StepCase{of.running, kShortLen});
  std::vector<double> microseconds, of_short;
  for (int32_t i = 0; i < kStepsMeasured; ++i) {
    microseconds.push_back(requests.step_microseconds());
    if (behind_short) of_short.push_back(behind_short->step_microseconds());
  }
  StepTimes times{.microseconds = median(microseconds), .growth = std::nullopt};
  if (behind_short) times.growth = times.microseconds / median(of_short) - 1;
  return times;
}

std::vector<StepCase> step_cases(const EngineBenchConfig& bench) {
  if (bench.running.empty() && !bench.input_len) {
    return {{1, kShortLen},    {64, kShortLen},      {kGoalRunning, kShortLen},
            {1024, kShortLen}, {kGoalRunning, 4096}, {kGoalRunning, 65536}};
  }
  std::vector<StepCase> cases;
  for (const int32_t running : bench.running.empty() ? std::vector{1, 64, kGoalRunning, 1024} : bench.running) {
    cases.push_back({running, bench.input_len.value_or(kShortLen)});
  }
  return cases;
}

// One line: a case, what it took, and its goal if there is one. `more`: further fields, each behind a comma.
void write_row(const std::string& name, double microseconds, std::optional<double> goal, const std::string& more = "") {
  write_out(fmt::format("{{\"name\": \"engine {}\", \"median_us\": {:.2f}, \"goal_us\": {}{}}}\n", name, microseconds,
                        goal ? fmt::format("{:g}", *goal) : "null", more));
}

void bench_steps(const EngineBenchConfig& bench, Kind kind) {
  for (const StepCase& of : step_cases(bench)) {
    const StepTimes times = step_times(bench, kind, of);
    std::optional<double> goal;
    if (of.running == kGoalRunning) goal = kind.layers == Kind::Layers::kDense ? kGoalDenseUs : kGoalHybridUs;
    write_row(
        fmt::format("step of {} running behind {} tokens {}", of.running, of.input_len, kind.name()),
        times.microseconds, goal,
        times.growth ? fmt::format(", \"growth\": {:.3f}, \"goal_growth\": {:g}", *times.growth, kGoalGrowth) : "");
  }
}

// Microseconds that a step takes more through EngineLoop.
void bench_loop(const EngineBenchConfig& bench, Kind kind, const StepCase& of, int32_t num_queues) {
  RunningRequests alone(bench, kind, of);
  SubmittedRequests submitted(bench, kind, of, num_queues);
  std::vector<double> of_engine, of_loop;
  for (int32_t i = 0; i < kStepsMeasured; ++i) {
    of_engine.push_back(alone.step_microseconds());
    of_loop.push_back(submitted.step_microseconds());
  }
  write_row(fmt::format("loop of {} running in {} queues {}", of.running, num_queues, kind.name()),
            median(of_loop) - median(of_engine),
            of.running == kGoalRunning ? std::optional(kGoalLoopUs) : std::nullopt);
}

void bench_loops(const EngineBenchConfig& bench, Kind kind) {
  for (const int32_t running : bench.running.empty() ? std::vector{kGoalRunning} : bench.running) {
    for (const int32_t num_queues : {1, running}) {
      bench_loop(bench, kind, {running, bench.input_len.value_or(kShortLen)}, num_queues);
    }
  }
}

struct AdmissionCase {
  int32_t running = 1, cached = 1, input_len = 1;
};

// An engine with cached texts, beside running requests that begin as they do.
class CachedTexts {
 public:
  CachedTexts(const EngineBenchConfig& bench, Kind kind, const AdmissionCase& of)
      : of_(of),
        shared_len_(static_cast<int32_t>(int64_t{of.input_len} * 4 / 5 / bench.page_size * bench.page_size)),
        empty_(kind, config_of(bench)),
        shared_(random_prompt(empty_.model_info(), shared_len_, 0)) {
    for (int32_t i = 0; i < of_.cached; ++i) {
      engine().add(next_prompt(of_.input_len - shared_len_), most_likely(1));
      while (!engine().idle()) engine().step();
    }
    for (int32_t r = 0; r < of_.running; ++r) engine().add(next_prompt(kOwnLen), most_likely(output_len()));
    num_reused_ = start(engine(), of_.running);
  }

  int32_t num_reused() const { return num_reused_; }

  // Microseconds of add() and the step that admits the request, less those of a step without it.
  double admission_microseconds() {
    std::vector<int32_t> prompt = next_prompt(of_.input_len - shared_len_);
    const double plain = cpu_microseconds_of([&] { engine().step(); });
    int64_t id = 0;
    const double both = cpu_microseconds_of([&] {
      id = engine().add(std::move(prompt), most_likely(1));
      engine().step();
    });
    HR_REQUIRE(std::cmp_equal(engine().scheduler().num_running(), of_.running + 1), ErrorCode::kInternal,
               "bench engine: ", engine().scheduler().num_running(), " requests run, expected ", of_.running,
               " and an admitted one");
    engine().abort(id);
    return both - plain;
  }

 private:
  static constexpr int32_t kOwnLen = 32;  // tokens of a running request's prompt behind the shared ones

  int32_t output_len() const { return of_.running + 2 * kAdmissionsMeasured + 8; }  // all run until the end

  EngineConfig config_of(const EngineBenchConfig& bench) const {
    const int32_t context = std::max(of_.input_len, shared_len_ + kOwnLen + output_len()) + 1;
    // A step has room for less than a page of an admitted prompt: its abort caches nothing new, and building its rows
    // is no part of what is measured.
    const int32_t rows = of_.running + std::max(1, std::min(kOwnLen, bench.page_size - 1));
    EngineConfig config = engine_config(bench, of_.running + 1, context, rows);
    config.steps_ahead = EngineConfig::StepsAhead::kNever;  // a step that runs ahead puts an admission off
    const int32_t own = pages_for(of_.input_len - shared_len_ + 1, bench.page_size) + 1;
    const int32_t of_running = pages_for(kOwnLen + output_len(), bench.page_size) + 1;
    config.runner.num_pages = pages_for(context, bench.page_size) + (of_.cached + 1) * own + of_.running * of_running;
    return config;
  }

  std::vector<int32_t> next_prompt(int32_t own_len) {
    std::vector<int32_t> prompt = shared_;
    const std::vector<int32_t> own = random_prompt(empty_.model_info(), own_len, ++seed_);
    prompt.insert(prompt.end(), own.begin(), own.end());
    return prompt;
  }

  Engine& engine() { return empty_.engine(); }

  AdmissionCase of_;
  int32_t shared_len_;  // tokens, whole pages
  EmptyEngine empty_;
  std::vector<int32_t> shared_;
  uint64_t seed_ = 0;
  int32_t num_reused_ = 0;
};

void bench_admission(const EngineBenchConfig& bench, Kind kind, const AdmissionCase& of) {
  CachedTexts texts(bench, kind, of);
  std::vector<double> microseconds(kAdmissionsMeasured);
  std::ranges::generate(microseconds, [&] { return texts.admission_microseconds(); });
  const bool has_goal = of.running == kGoalRunning && of.cached == kGoalCached && of.input_len == kGoalAdmissionLen;
  write_row(fmt::format("admission of {} tokens beside {} running and {} cached texts {}", of.input_len, of.running,
                        of.cached, kind.name()),
            median(microseconds), has_goal ? std::optional(kGoalAdmissionUs) : std::nullopt,
            fmt::format(", \"reused\": {}", texts.num_reused()));
}

void bench_admissions(const EngineBenchConfig& bench, Kind kind) {
  for (const int32_t running : bench.running.empty() ? std::vector{kGoalRunning} : bench.running) {
    for (const int32_t cached : {10, 100, kGoalCached}) {
      bench_admission(bench, kind, {running, cached, bench.input_len.value_or(kGoalAdmissionLen)});
    }
  }
}

}  // namespace

void bench_engine(const EngineBenchConfig& config) {
  for (const Kind kind : kKinds) bench_steps(config, kind);
  bench_loops(config, kKinds.front());
  for (const Kind kind : kKinds) bench_admissions(config, kind);
}

}  // namespace headrace::app
