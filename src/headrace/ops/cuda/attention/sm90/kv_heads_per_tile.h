// KV heads of a prompt that the Hopper attention kernel processes side by side, so that their keys stay in L2.
#pragma once
#include <cstdint>

namespace headrace::cuda {

// Bytes of keys and values that CTAs may read at a time: what L2 holds of them, whichever of its halves serves the
// reads.
constexpr int64_t kTogetherBytes = int64_t{20} << 20;
// Least work tiles per CTA among the heads that are processed together. With fewer, CTAs would end at different times.
constexpr double kTogetherRounds = 1.9;

// Input of heads_together().
struct HeadsOfPrompts {
  int kv_heads;
  int64_t bytes;      // of a KV head: keys and values of the longest request
  int64_t row_tiles;  // of all requests
};

// Returns how many KV heads to process together: the most, a divisor of all, whose keys L2 holds, but enough to give
// each CTA kTogetherRounds work tiles.
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
