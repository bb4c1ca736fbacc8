#include "serve_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "curve_svg.h"
#include "headrace/core/error.h"
#include "headrace/text/json_string.h"
#include "measured_server.h"
#include "measuring.h"
#include "output.h"

namespace headrace::app {
namespace {

constexpr int32_t kNumPrompts = 100, kAnswerTokens = 128;

// The texts of the conversations of one rate, and the times at which they begin.
class Workload {
 public:
  Workload(const LoadFlags& load, int32_t input_len, std::optional<double> rate, uint64_t seed)
      : load_(load), input_len_(input_len), random_(seed), words_(std::random_device{}()) {
    for (int32_t i = 0; i < load.num_prefixes; ++i) prefix_seeds_.push_back(words_());
    draw_times(rate);
  }

  const std::vector<double>& begin_s() const { return begin_s_; }

  std::string body(const MeasuredServer& server, size_t conversation, int32_t turn, const std::string& answer) {
    LoadHistory& history = histories_[conversation];
    if (turn > 0) history.add_answer(answer);
    const TokenRatio& tokens = server.tokens();
    std::string text;
    if (turn == 0 && load_.prefix_len.value_or(0) > 0) {
      RandomWords prefix(prefix_seeds_[conversation % prefix_seeds_.size()]);
      text = prefix.text(tokens.words_for(*load_.prefix_len));
    }
    text += RandomWords(words_()).text(tokens.words_for(length(input_len_)));
    history.add_user(std::move(text));
    std::string body = server.body(history, length(load_.output_len.value_or(kAnswerTokens)));
    if (turn + 1 == load_.turns.value_or(1)) histories_.erase(conversation);
    return body;
  }

 private:
  // Conversations of a Poisson process have exponential times between them.
  void draw_times(std::optional<double> rate) {
    const double seconds = 1e-3 * static_cast<double>(load_.duration);
    int64_t count = load_.num_prompts.value_or(kNumPrompts);
    if (load_.duration > 0) count = std::max<int64_t>(1, std::llround(seconds * rate.value_or(0)));
    std::exponential_distribution<double> between(rate.value_or(1));
    double at = 0;
    for (int64_t i = 0; i < count; ++i) {
      if (rate) at += between(random_);
      begin_s_.push_back(at);
    }
  }

  int32_t length(int32_t middle) {
    std::uniform_real_distribution<double> factor(1 - load_.range_ratio, 1 + load_.range_ratio);
    return std::max(1, static_cast<int32_t>(std::lround(factor(random_) * middle)));
  }

  const LoadFlags& load_;  // not owned
  const int32_t input_len_;
  std::mt19937_64 random_;  // of lengths and times
  std::mt19937_64 words_;   // of words, so that no prefix cache knows them from an earlier run
  std::vector<uint64_t> prefix_seeds_;
  std::vector<double> begin_s_;
  std::map<size_t, LoadHistory> histories_;  // of conversations that go on
};

struct Measurement {
  std::string rate;
  LoadOutcome outcome;
  LoadSummary summary;
  std::optional<MeasuredServer::HttpCpu> http_cpu;  // of this load
};

Measurement measure(MeasuredServer& server, const LoadFlags& load, int32_t input_len, size_t number) {
  const std::string& rate = load.request_rates[number];
  Workload workload(load, input_len, request_rate_of(rate), load.seed + number);
  Measuring progress("requests");
  const LoadPlan plan{
      .path = server.path(),
      .begin_s = workload.begin_s(),
      .num_turns = load.turns.value_or(1),
      .max_concurrency = load.max_concurrency,
      .body = [&](size_t c, int32_t turn, const std::string& answer) { return workload.body(server, c, turn, answer); },
      .progress = [&progress](int64_t ended, int64_t all) { progress.update(ended, all); }};
  const auto before = server.http_cpu();
  Measurement m{.rate = rate, .outcome = server.client().run(plan)};
  if (const auto after = server.http_cpu())
    m.http_cpu = {.event_loop_s = after->event_loop_s - before->event_loop_s,
                  .replies_s = after->replies_s - before->replies_s};
  const std::optional<Goodput> bounds = load.goodput.empty() ? std::nullopt : std::optional(goodput_of(load.goodput));
  m.summary = summary_of(m.outcome.results, bounds);
  return m;
}

std::string machine_json(const Measurement& m) {
  const auto us_per_token = [&m](double seconds) {
    return fmt::format("{:.2f}", 1e6 * seconds / static_cast<double>(std::max<int64_t>(1, m.summary.output_tokens)));
  };
  const Distribution health = Distribution::of(m.outcome.health_s);
  std::string out = fmt::format(R"(, "p50_health_ms": {:.3f}, "p99_health_ms": {:.3f}, "client_us_per_token": {})",
                                health.p50, health.p99, us_per_token(m.outcome.client_cpu_s));
  if (m.http_cpu)
    out += fmt::format(R"(, "event_loop_us_per_token": {}, "reply_us_per_token": {})",
                       us_per_token(m.http_cpu->event_loop_s), us_per_token(m.http_cpu->replies_s));
  if (const auto& p = m.outcome.process)
    out += fmt::format(R"(, "server_cpu_s": {:.2f}, "server_mb": {{"begin": {:.1f}, "most": {:.1f}, "end": {:.1f}}})",
                       p->cpu_s, p->begin_bytes / 1e6, p->most_bytes / 1e6, p->end_bytes / 1e6);
  return out;
}

std::string line_of(const Measurement& m, const MeasuredServer& server, const LoadFlags& load) {
  return fmt::format(R"({{"name": "serve {}", "request_rate": {}, "max_concurrency": {}, {}{}}})", server.path(),
                     m.rate == "inf" ? R"("inf")" : m.rate,
                     load.max_concurrency > 0 ? std::to_string(load.max_concurrency) : "null", summary_json(m.summary),
                     machine_json(m)) +
         '\n';
}

// One sentence for each status.
void tell_errors(const Measurement& m) {
  std::set<int> told;
  for (const RequestResult& r : m.outcome.results) {
    if (r.is_complete() || !told.insert(r.status).second) continue;
    write_err(fmt::format("headrace: warning: {} of {} requests failed as this one: {}\n",
                          m.summary.errors.at(r.status), m.outcome.results.size(), without_controls(r.error)));
  }
}

Chart chart_of(const std::vector<Measurement>& all, const std::string& model) {
  Chart chart{.title = "Latency of " + model, .x_axis = "output tokens/s", .y_axis = "ms"};
  const auto add = [&](const char* name, const Distribution LoadSummary::*times, double Distribution::*value) {
    Series series{.name = name};
    for (const Measurement& m : all) {
      series.points.push_back({.x = m.summary.output_throughput,
                               .y = m.summary.*times.*value,
                               .label = str(m.rate, " requests/s"),
                               .name = series.name == "first token, p99" ? m.rate + "/s" : ""});
    }
    chart.series.push_back(std::move(series));
  };
  add("first token, p99", &LoadSummary::ttft, &Distribution::p99);
  add("first token, p50", &LoadSummary::ttft, &Distribution::p50);
  add("next token, p99", &LoadSummary::itl, &Distribution::p99);
  add("next token, p50", &LoadSummary::itl, &Distribution::p50);
  return chart;
}

// Before a model is loaded for nothing.
void check(const LoadFlags& load) {
  if (!load.goodput.empty()) goodput_of(load.goodput);
  for (const std::string& rate : load.request_rates) {
    HR_REQUIRE(load.duration == 0 || request_rate_of(rate), ErrorCode::kInvalidArgument,
               "--duration: needs a --request-rate other than inf");
  }
  HR_REQUIRE(load.duration == 0 || !load.num_prompts, ErrorCode::kInvalidArgument,
             "--duration: is given beside --num-prompts, expected one of them");
}

}  // namespace

void bench_serve(const ModelFlags& model, const LoadFlags& load, int32_t input_len) {
  check(load);
  std::optional<OutputFile> svg;
  if (!load.svg.empty()) svg.emplace(load.svg);
  MeasuredServer server(model, load, load.path.empty() ? std::string(kCompletionsPath) : load.path);
  std::vector<Measurement> all;
  for (size_t i = 0; i < load.request_rates.size(); ++i) {
    all.push_back(measure(server, load, input_len, i));
    tell_errors(all.back());
    HR_REQUIRE(all.back().summary.completed > 0, ErrorCode::kIo,
               "bench serve: no request was answered: ", all.back().outcome.results.front().error);
    write_out(line_of(all.back(), server, load));
    all.back().outcome = {};
  }
  if (svg) svg->write(curve_svg(chart_of(all, server.model_name())));
}

}  // namespace headrace::app
