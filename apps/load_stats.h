// Times of requests to a server, and statistics of many of them.
#pragma once
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace headrace::app {

// Seconds count from the begin of the load.
struct RequestResult {
  int32_t turn = 0;   // of its conversation
  int status = 0;     // of HTTP; 0: there was no connection, or it ended too early
  std::string error;  // one sentence; empty: the answer is complete
  double begin_s = 0, end_s = 0;
  std::vector<double> pieces_s;  // when each piece of the stream with text came
  int64_t prompt_tokens = 0, output_tokens = 0;
  std::optional<int64_t> cached_tokens;  // of the prompt, if the server tells
  std::string answer;

  bool is_complete() const { return error.empty(); }
  double ttft_s() const { return (pieces_s.empty() ? end_s : pieces_s.front()) - begin_s; }
  double e2el_s() const { return end_s - begin_s; }
  double tpot_s() const;  // of the tokens behind the first one; 0 without them
};

// Milliseconds that a request may take. What is not said is not bounded.
struct Goodput {
  static constexpr double kAny = std::numeric_limits<double>::infinity();
  double ttft_ms = kAny, tpot_ms = kAny, e2el_ms = kAny;

  bool holds(const RequestResult& result) const;
};

// Reads "ttft:500", "tpot:50" and "e2el:3000". Error kInvalidArgument, one sentence.
Goodput goodput_of(std::span<const std::string> bounds);

// Returns the value that `percent` of the values do not exceed, between the two nearest ones in proportion, as numpy
// does; 0 without values. `sorted`: ascending.
double percentile(std::span<const double> sorted, double percent);

// Times in milliseconds.
struct Distribution {
  double mean = 0, p50 = 0, p90 = 0, p99 = 0;

  static Distribution of(std::vector<double> seconds);
};

struct LoadSummary {
  int64_t completed = 0, failed = 0;
  std::map<int, int64_t> errors;  // by status; 0: no connection
  int64_t input_tokens = 0, output_tokens = 0, cached_tokens = 0;
  double duration_s = 0;          // from the begin to the last answer
  double offered_rate = 0;        // requests in a second until the last one was sent
  double throughput = 0;          // requests answered in a second
  double output_throughput = 0;   // tokens in a second
  std::optional<double> goodput;  // requests in a second within the bounds
  Distribution ttft, tpot, itl, e2el;
};

// Times are of complete requests alone.
LoadSummary summary_of(std::span<const RequestResult> results, const std::optional<Goodput>& bounds);

// Returns the fields of a JSON object, in vLLM's words where it has them, without braces.
std::string summary_json(const LoadSummary& summary);

}  // namespace headrace::app
