// Recurrent states behind beginnings of texts, whose requests are over or have passed there: a later request that
// begins with one may go on from a copy.
#pragma once
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

namespace headrace {

// Knows which slot holds what; keys and values of the same tokens are PrefixCache' to know. Each beginning stands here
// once. Not thread-safe.
class StateCache {
 public:
  struct State {
    int32_t num_tokens = 0, slot = 0;
  };

  // Keeps `slot`, which holds the state behind all of `tokens`. Error kInternal where it is known.
  void keep(std::span<const int32_t> tokens, int32_t slot);
  // The state behind the longest beginning of `tokens`, the newest from now on.
  std::optional<State> find(std::span<const int32_t> tokens);
  // Whether the state behind all of `tokens` is here; then it is the newest from now on.
  bool knows(std::span<const int32_t> tokens);
  // Forgets the oldest one and returns its slot; nothing when there is none.
  std::optional<int32_t> drop_oldest();

  int32_t size() const { return static_cast<int32_t>(texts_.size()); }

 private:
  struct Text {
    std::vector<int32_t> tokens;
    int32_t slot = 0;
  };

  std::deque<Text> texts_;  // the oldest first
};

}  // namespace headrace
