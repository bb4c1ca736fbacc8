#include "random_prompt.h"

#include <algorithm>

#include "bench/random_inputs.h"

namespace headrace::app {

std::vector<int32_t> random_prompt(const ModelInfo& info, int32_t len, uint64_t seed) {
  std::vector<int32_t> ids = bench::random_tokens(len, info.vocab_size, seed);
  if (!info.diffusion || !info.diffusion->mask_token_id) return ids;
  const int32_t mask = *info.diffusion->mask_token_id;
  std::ranges::replace(ids, mask, mask > 0 ? mask - 1 : 1);
  return ids;
}

}  // namespace headrace::app
