#include "headrace/serve/metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "headrace/core/error.h"

namespace headrace {
namespace {

// A label's value: backslashes, quotes and line breaks are escaped.
std::string label(std::string_view name, std::string_view value) {
  std::string out = str(name, "=\"");
  for (const char c : value) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out + '"';
}

class Exposition {
 public:
  enum class Kind : uint8_t { kCounter, kGauge };

  void head(std::string_view name, std::string_view help, Kind kind) {
    text_ += str("# HELP ", name, ' ', help, "\n# TYPE ", name, kind == Kind::kCounter ? " counter\n" : " gauge\n");
  }
  template <class Number>
  void sample(std::string_view name, std::string_view labels, Number value) {
    text_ += labels.empty() ? str(name, ' ', value, '\n') : str(name, '{', labels, "} ", value, '\n');
  }
  // One number under our name and, if there is one, vLLM's.
  template <class Number>
  void number(Kind kind, std::string_view ours, std::string_view vllm, std::string_view help, Number value) {
    for (const std::string_view name : {ours, vllm}) {
      if (name.empty()) continue;
      head(name, help, kind);
      sample(name, model_, value);
    }
  }
  void set_model(std::string_view name) { model_ = label("model_name", name); }
  std::string& text() { return text_; }
  const std::string& model() const { return model_; }

 private:
  std::string text_, model_;
};

void append_engine(const Metrics::Outside& outside, Exposition& e) {
  using Kind = Exposition::Kind;
  const EngineStats& s = outside.engine;
  const auto used = [](int32_t free, int32_t all) { return all > 0 ? 1 - static_cast<double>(free) / all : 0.0; };
  e.number(Kind::kGauge, "headrace_requests_running", "vllm:num_requests_running", "Choices that run.", s.running);
  e.number(Kind::kGauge, "headrace_requests_waiting", "vllm:num_requests_waiting", "Choices that wait.",
           outside.queued);
  e.number(Kind::kGauge, "headrace_kv_cache_usage", "vllm:kv_cache_usage_perc",
           "Share of the pages that running requests have.", used(s.free_pages, s.num_pages));
  e.number(Kind::kGauge, "headrace_state_usage", "", "Share of the recurrent states that running requests have.",
           used(s.free_states, s.num_states));
  e.number(Kind::kGauge, "headrace_pages", "", "Pages of keys and values.", s.num_pages);
  e.number(Kind::kGauge, "headrace_free_pages", "", "Pages that no running request has.", s.free_pages);
  e.number(Kind::kGauge, "headrace_free_states", "", "Recurrent states that no running request has.", s.free_states);
  e.number(Kind::kCounter, "headrace_steps_total", "", "Steps of the engine.", s.steps);
  e.number(Kind::kCounter, "headrace_rows_total", "", "Tokens that ran through the model.", s.rows);
  e.number(Kind::kCounter, "headrace_preemptions_total", "vllm:num_preemptions_total",
           "Requests that gave up their pages.", s.preemptions);
  e.number(Kind::kGauge, "headrace_connections", "", "Open connections.", outside.http.connections);
}

double cpu_seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

// Under the names that Prometheus' client libraries have for every process.
void append_process(Exposition& e) {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  e.head("process_cpu_seconds_total", "CPU time of the process.", Exposition::Kind::kCounter);
  e.sample("process_cpu_seconds_total", "", cpu_seconds(usage.ru_utime) + cpu_seconds(usage.ru_stime));
  int64_t all_pages = 0, resident_pages = 0;
  if (!(std::ifstream("/proc/self/statm") >> all_pages >> resident_pages)) return;
  e.head("process_resident_memory_bytes", "Memory of the process.", Exposition::Kind::kGauge);
  e.sample("process_resident_memory_bytes", "", resident_pages * sysconf(_SC_PAGESIZE));
}

template <class Key>
void append_by(const std::map<Key, int64_t, std::less<>>& counts, std::string_view name, std::string_view key,
               std::string_view help, Exposition& e) {
  e.head(name, help, Exposition::Kind::kCounter);
  for (const auto& [value, count] : counts) e.sample(name, str(e.model(), ',', label(key, value)), count);
}

}  // namespace

void Histogram::add(double seconds) {
  ++counts_[static_cast<size_t>(std::ranges::lower_bound(bounds_, seconds) - bounds_.begin())];
  sum_ += seconds;
}

void Histogram::append(std::string_view name, std::string_view help, std::string& out) const {
  out += str("# HELP ", name, ' ', help, "\n# TYPE ", name, " histogram\n");
  int64_t count = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    count += counts_[i];
    out += str(name, "_bucket{le=\"", i < bounds_.size() ? str(bounds_[i]) : "+Inf", "\"} ", count, '\n');
  }
  out += str(name, "_sum ", sum_, '\n', name, "_count ", count, '\n');
}

void Metrics::count_response(int status) {
  const std::lock_guard lock(mutex_);
  ++responses_[status];
}

void Metrics::count_success(std::string_view finish_reason, const Response::Usage& usage) {
  const std::lock_guard lock(mutex_);
  ++successes_[std::string(finish_reason)];
  tokens_.prompt_tokens += usage.prompt_tokens;
  tokens_.completion_tokens += usage.completion_tokens;
  tokens_.cached_tokens += usage.cached_tokens;
}

void Metrics::count_failure(std::string_view reason) {
  const std::lock_guard lock(mutex_);
  ++failures_[std::string(reason)];
}

void Metrics::add_first_token(double seconds) {
  const std::lock_guard lock(mutex_);
  first_token_.add(seconds);
}

void Metrics::add_between_tokens(double seconds) {
  const std::lock_guard lock(mutex_);
  between_tokens_.add(seconds);
}

void Metrics::add_request(double seconds) {
  const std::lock_guard lock(mutex_);
  request_.add(seconds);
}

std::string Metrics::text(const Outside& outside) const {
  using Kind = Exposition::Kind;
  Exposition e;
  e.set_model(outside.model);
  append_process(e);
  append_engine(outside, e);
  const std::lock_guard lock(mutex_);
  e.number(Kind::kCounter, "headrace_prompt_tokens_total", "vllm:prompt_tokens_total", "Tokens of prompts.",
           tokens_.prompt_tokens);
  e.number(Kind::kCounter, "headrace_generation_tokens_total", "vllm:generation_tokens_total", "Tokens of outputs.",
           tokens_.completion_tokens);
  e.number(Kind::kCounter, "headrace_cached_tokens_total", "vllm:prefix_cache_hits_total",
           "Tokens of prompts that the prefix cache had.", tokens_.cached_tokens);
  e.number(Kind::kCounter, "headrace_prefix_cache_queries_total", "vllm:prefix_cache_queries_total",
           "Tokens of prompts that were looked up in the prefix cache.", tokens_.prompt_tokens);
  for (const std::string_view name : {"headrace_requests_succeeded_total", "vllm:request_success_total"})
    append_by(successes_, name, "finished_reason", "Requests that were answered.", e);
  append_by(failures_, "headrace_requests_failed_total", "reason", "Requests that were refused or failed.", e);
  e.head("headrace_responses_total", "Responses by status.", Kind::kCounter);
  for (const auto& [status, count] : responses_)
    e.sample("headrace_responses_total", str("status=\"", status, '"'), count);
  for (const std::string_view name : {"headrace_time_to_first_token_seconds", "vllm:time_to_first_token_seconds"})
    first_token_.append(name, "From the request to its first token.", e.text());
  for (const std::string_view name : {"headrace_inter_token_latency_seconds", "vllm:inter_token_latency_seconds"})
    between_tokens_.append(name, "Between tokens of a choice.", e.text());
  for (const std::string_view name : {"headrace_request_seconds", "vllm:e2e_request_latency_seconds"})
    request_.append(name, "From the request to the end of its response.", e.text());
  return std::move(e.text());
}

}  // namespace headrace
