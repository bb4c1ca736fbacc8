#include "bench/report.h"

#include <fmt/format.h>

namespace headrace::bench {

std::string json_line(const Result& r) {
  if (r.bytes == 0 && r.flops == 0) {  // a time alone
    const std::string rate =
        r.tokens > 0 ? fmt::format(", \"tokens_per_s\": {:.1f}", static_cast<double>(r.tokens) / r.median_s) : "";
    return fmt::format("{{\"name\": \"{}\", \"median_s\": {:.6f}{}}}\n", r.name, r.median_s, rate);
  }
  constexpr const char* kNames[] = {"R", "RW", "M"};
  const double rate = (r.limit == Result::Limit::kMatrix ? r.flops : r.bytes) / r.median_s;
  const std::string limit = r.limit_rate ? fmt::format("{:.4g}", *r.limit_rate) : "null";
  const std::string share = r.limit_rate ? fmt::format("{:.3f}", rate / *r.limit_rate) : "null";
  return fmt::format(
      "{{\"name\": \"{}\", \"median_s\": {:.6f}, \"bytes\": {:.0f}, \"flops\": {:.0f}, \"limit\": \"{}\", "
      "\"limit_rate\": {}, \"rate\": {:.4g}, \"share\": {}}}\n",
      r.name, r.median_s, r.bytes, r.flops, kNames[static_cast<size_t>(r.limit)], limit, rate, share);
}

}  // namespace headrace::bench
