// The server's counters, as Prometheus reads them.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/http/http_server.h"
#include "headrace/llm/engine_loop.h"
#include "headrace/serve/response.h"

namespace headrace {

// Seconds, in buckets whose bounds are `bounds`.
class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}
  void add(double seconds);
  // Appends the series of `name`, which may hold a colon.
  void append(std::string_view name, std::string_view help, std::string& out) const;

 private:
  std::vector<double> bounds_;
  std::vector<int64_t> counts_;
  double sum_ = 0;
};

// Thread-safe.
class Metrics {
 public:
  void count_response(int status);
  void count_success(std::string_view finish_reason, const Response::Usage& usage);
  void count_failure(std::string_view reason);  // "aborted", "timeout", an API's code or its type
  void add_first_token(double seconds);
  void add_between_tokens(double seconds);
  void add_request(double seconds);

  // Figures that are counted elsewhere.
  struct Outside {
    EngineStats engine;
    HttpServer::Stats http;
    int32_t queued = 0;  // choices that wait, those that the engine has not seen included
    std::string_view model;
  };
  // Returns the text of all series: headrace_..., and under vLLM's names those that vLLM has.
  std::string text(const Outside& outside) const;

 private:
  mutable std::mutex mutex_;
  std::map<int, int64_t> responses_;
  std::map<std::string, int64_t, std::less<>> successes_, failures_;
  Response::Usage tokens_;
  Histogram first_token_{
      {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40}};
  Histogram between_tokens_{
      {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5}};
  Histogram request_{{0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480}};
};

}  // namespace headrace
