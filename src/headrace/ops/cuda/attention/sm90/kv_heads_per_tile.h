// How many kv heads of a prompt the Hopper attention kernel takes side by side.
#pragma once
#include <cstdint>

namespace headrace::cuda {

// Of the keys and values that blocks read at a time: what the L2 holds of them, whichever of its halves asks.
constexpr int64_t kTogetherBytes = int64_t{20} << 20;
// Pieces of the heads that are taken together, for each block, at least: with fewer, blocks would end apart.
constexpr double kTogetherRounds = 1.9;

struct HeadsOfPrompts {
  int kv_heads;
  int64_t bytes;      // of a kv head: keys and values of the longest request
  int64_t row_tiles;  // of all requests
};

// The most heads, a divisor of all, whose keys the L2 holds, and at least as many as there are enough pieces of.
constexpr int heads_together(const HeadsOfPrompts& of, int blocks) {
  int together = of.kv_heads;
  for (int fewer = together; fewer > 0 && together * of.bytes > kTogetherBytes; --fewer) {
    if (of.kv_heads % fewer != 0) continue;
    if (static_cast<double>(fewer * of.row_tiles) < kTogetherRounds * blocks) break;
    together = fewer;
  }
  return together;
}

}  // namespace headrace::cuda
