// The flags of `headrace bench serve` and `bench agent`.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace headrace::app {

struct LoadFlags {
  std::string url, api_key, svg;
  std::string path;  // of requests; empty: the measurement's default
  std::vector<std::string> request_rates = {"inf"}, goodput;
  std::optional<int32_t> num_prompts, turns, output_len, prefix_len;  // likewise
  std::optional<int32_t> max_num_seqs;                                // absent: by memory
  int32_t max_concurrency = 0, num_prefixes = 1, max_queued_requests = 512;
  double range_ratio = 0.5;
  int64_t duration = 0;  // milliseconds; 0: num_prompts says how many
  uint64_t seed = 0;
};

// In groups of their own.
void add_load_flags(CLI::App& command, LoadFlags& flags);
// Refuses those that the measurement `what` does not take. Error kInvalidArgument.
void refuse_load_flags(const CLI::App& command, const std::string& what);

// Returns requests in a second; nothing for "inf": all at once. Error kInvalidArgument, without the flag's name.
std::optional<double> request_rate_of(const std::string& text);

}  // namespace headrace::app
