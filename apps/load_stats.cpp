#include "load_stats.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "headrace/core/error.h"

namespace headrace::app {
namespace {

// The bound that a name sets.
double& bound_of(Goodput& goodput, std::string_view name, const std::string& text) {
  if (name == "ttft") return goodput.ttft_ms;
  if (name == "tpot") return goodput.tpot_ms;
  HR_REQUIRE(name == "e2el", ErrorCode::kInvalidArgument, "--goodput: is '", text,
             "', expected ttft:MS, tpot:MS or e2el:MS");
  return goodput.e2el_ms;
}

// Returns a/b, and 0 where nothing happened.
double ratio(double a, double b) { return b > 0 ? a / b : 0; }

std::string distribution_json(std::string_view name, const Distribution& d) {
  return fmt::format(R"(, "mean_{0}_ms": {1:.3f}, "p50_{0}_ms": {2:.3f}, "p90_{0}_ms": {3:.3f}, "p99_{0}_ms": {4:.3f})",
                     name, d.mean, d.p50, d.p90, d.p99);
}

std::string errors_json(const std::map<int, int64_t>& errors) {
  std::string out;
  for (const auto& [status, count] : errors)
    out += fmt::format(R"({}"{}": {})", out.empty() ? "" : ", ", status, count);
  return '{' + out + '}';
}

}  // namespace

double RequestResult::tpot_s() const {
  return output_tokens > 1 ? (e2el_s() - ttft_s()) / static_cast<double>(output_tokens - 1) : 0;
}

bool Goodput::holds(const RequestResult& r) const {
  return r.is_complete() && 1e3 * r.ttft_s() <= ttft_ms && 1e3 * r.tpot_s() <= tpot_ms && 1e3 * r.e2el_s() <= e2el_ms;
}

Goodput goodput_of(std::span<const std::string> bounds) {
  Goodput goodput;
  for (const std::string& text : bounds) {
    const size_t colon = std::min(text.find(':'), text.size());
    double& bound = bound_of(goodput, std::string_view(text).substr(0, colon), text);
    const char* const end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data() + std::min(colon + 1, text.size()), end, bound);
    HR_REQUIRE(error == std::errc() && at == end && std::isfinite(bound) && bound > 0, ErrorCode::kInvalidArgument,
               "--goodput: is '", text, "', expected milliseconds above 0 behind the colon");
  }
  return goodput;
}

double percentile(std::span<const double> sorted, double percent) {
  if (sorted.empty()) return 0;
  const double at = percent / 100 * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<size_t>(at), high = std::min(low + 1, sorted.size() - 1);
  return std::lerp(sorted[low], sorted[high], at - static_cast<double>(low));
}

Distribution Distribution::of(std::vector<double> seconds) {
  if (seconds.empty()) return {};
  std::ranges::sort(seconds);
  const double sum = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  return {.mean = 1e3 * sum / static_cast<double>(seconds.size()),
          .p50 = 1e3 * percentile(seconds, 50),
          .p90 = 1e3 * percentile(seconds, 90),
          .p99 = 1e3 * percentile(seconds, 99)};
}

LoadSummary summary_of(std::span<const RequestResult> results, const std::optional<Goodput>& bounds) {
  LoadSummary s;
  std::vector<double> ttft, tpot, itl, e2el;
  double last_begin = 0;
  int64_t num_good = 0;
  for (const RequestResult& r : results) {
    s.duration_s = std::max(s.duration_s, r.end_s), last_begin = std::max(last_begin, r.begin_s);
    if (!r.is_complete()) {
      ++s.failed, ++s.errors[r.status];
      continue;
    }
    ++s.completed;
    s.input_tokens += r.prompt_tokens, s.output_tokens += r.output_tokens,
        s.cached_tokens += r.cached_tokens.value_or(0);
    ttft.push_back(r.ttft_s()), e2el.push_back(r.e2el_s());
    if (r.output_tokens > 1) tpot.push_back(r.tpot_s());
    for (size_t i = 1; i < r.pieces_s.size(); ++i) itl.push_back(r.pieces_s[i] - r.pieces_s[i - 1]);
    if (bounds && bounds->holds(r)) ++num_good;
  }
  s.offered_rate = ratio(static_cast<double>(results.size()), last_begin);
  s.throughput = ratio(static_cast<double>(s.completed), s.duration_s);
  s.output_throughput = ratio(static_cast<double>(s.output_tokens), s.duration_s);
  if (bounds) s.goodput = ratio(static_cast<double>(num_good), s.duration_s);
  s.ttft = Distribution::of(std::move(ttft)), s.tpot = Distribution::of(std::move(tpot));
  s.itl = Distribution::of(std::move(itl)), s.e2el = Distribution::of(std::move(e2el));
  return s;
}

std::string summary_json(const LoadSummary& s) {
  return fmt::format(R"("duration_s": {:.3f}, "completed": {}, "failed": {}, "errors": {}, "offered_rate": {:.3f}, )"
                     R"("request_throughput": {:.3f}, "request_goodput": {}, "output_throughput": {:.2f}, )"
                     R"("total_input_tokens": {}, "total_cached_tokens": {}, "total_output_tokens": {})",
                     s.duration_s, s.completed, s.failed, errors_json(s.errors), s.offered_rate, s.throughput,
                     s.goodput ? fmt::format("{:.3f}", *s.goodput) : "null", s.output_throughput, s.input_tokens,
                     s.cached_tokens, s.output_tokens) +
         distribution_json("ttft", s.ttft) + distribution_json("tpot", s.tpot) + distribution_json("itl", s.itl) +
         distribution_json("e2el", s.e2el);
}

}  // namespace headrace::app
