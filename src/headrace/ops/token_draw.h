// Sampling parameters of one row. Host and device share them.
#pragma once
#include <cstdint>

namespace headrace {

// The weight of which top_p is a share: that of the top k, or of all candidates (for models whose top-p precedes
// top-k).
enum class TopPOf : uint8_t { kTopK, kAll };

// The sampling fields of SamplingParams, and the random number.
struct TokenDraw {
  double uniform = 0;     // in [0, 1)
  float temperature = 0;  // 0: the most likely token
  float top_p = 1, min_p = 0;
  int32_t top_k = 0;  // 0: all
  TopPOf top_p_of = TopPOf::kTopK;
};

}  // namespace headrace
