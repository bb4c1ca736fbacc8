// How a row's token is drawn. Host and device share it.
#pragma once
#include <cstdint>

namespace headrace {

// Of whose weight top_p is a share: of the top k's, or of all candidates', as where top-p comes before top-k.
enum class TopPOf : uint8_t { kTopK, kAll };

// What SamplingParams has of it, and the random number.
struct TokenDraw {
  double uniform = 0;     // in [0, 1)
  float temperature = 0;  // 0: the most likely token
  float top_p = 1, min_p = 0;
  int32_t top_k = 0;  // 0: all
  TopPOf top_p_of = TopPOf::kTopK;
};

}  // namespace headrace
