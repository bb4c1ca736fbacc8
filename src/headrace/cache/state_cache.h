// State cache: recurrent states at the ends of prefixes of running or finished requests. A later request with such a
// prefix starts from a copy.
#pragma once
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

namespace headrace {

// Maps prefixes to state slots, each prefix once; PrefixCache maps the K and V of the same tokens. Does not own the
// slots. Lookups are linear in the number of states. Not thread-safe.
class StateCache {
 public:
  struct State {
    int32_t num_tokens = 0, slot = 0;
  };

  // Adds `slot`, which holds the state after all of `tokens`. Error kInternal if the prefix is present.
  void keep(std::span<const int32_t> tokens, int32_t slot);
  // Returns the state of the longest cached prefix of `tokens` and marks it most recently used.
  std::optional<State> find(std::span<const int32_t> tokens);
  // Returns true if the state after all of `tokens` is cached, and marks it most recently used.
  bool knows(std::span<const int32_t> tokens);
  // Evicts the least recently used state and returns its slot; nothing if empty.
  std::optional<int32_t> drop_oldest();

  int32_t size() const { return static_cast<int32_t>(texts_.size()); }

 private:
  struct Text {
    std::vector<int32_t> tokens;
    int32_t slot = 0;
  };

  std::deque<Text> texts_;  // least recently used first
};

}  // namespace headrace
