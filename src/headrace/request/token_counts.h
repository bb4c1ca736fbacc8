// Counts how often each token occurs in a text that grows and whose last tokens may change.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace headrace {

class TokenCounts {
 public:
  // Counts `tokens`, of which the first `num_final` will not change. `open_id`, held by undecided positions, does not
  // count. Costs what has changed since the last call, and the tokens behind num_final.
  void update(std::span<const int32_t> tokens, int32_t num_final, std::optional<int32_t> open_id);

  // The distinct tokens, in no particular order, and the count of each, at least 1.
  std::span<const int32_t> ids() const { return ids_; }
  std::span<const int32_t> counts() const { return counts_; }

 private:
  void add(int32_t id);
  void remove(int32_t id);

  std::vector<int32_t> ids_, counts_;
  std::unordered_map<int32_t, size_t> indices_;  // into both
  size_t num_final_ = 0;                         // leading tokens that are counted for good
  std::vector<std::optional<int32_t>> rest_;     // the tokens behind them that are counted
};

}  // namespace headrace
