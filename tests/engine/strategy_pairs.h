// Strategies with checkpoints that they decode, and requests for them. Tests of all pairs stand in several files.
#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/golden_batches.h"
#include "headrace/engine/engine.h"

namespace headrace {

inline std::vector<int32_t> prompt_of(int32_t length, int32_t seed = 0) {
  std::vector<int32_t> prompt;
  for (int32_t p = 0; p < length; ++p) prompt.push_back(6 + (seed * 31 + p * p * 7 + p * 3) % 60);
  return prompt;
}

inline EngineConfig config_of(std::string strategy, int32_t max_requests, OpContext context = {.threads = 1}) {
  return {.runner = {.context = context, .num_pages = 64, .page_size = 16, .max_tokens = 256},
          .max_requests = max_requests,
          .max_context_len = 128,
          .strategy = std::move(strategy)};
}

struct Request {
  std::vector<int32_t> prompt;
  SamplingParams params;
};

inline SamplingParams greedy(int32_t max_tokens, float threshold) {
  SamplingParams params{.max_tokens = max_tokens, .temperature = 0, .end_of_text = SamplingParams::EndOfText::kIgnored};
  params.decoding.threshold = threshold;
  return params;
}

inline std::unique_ptr<Model> golden(const std::string& family, DType dtype, OpContext context) {
  return load_model(testing_support::golden_folder(family), {.dtype = dtype, .context = context});
}

// A strategy, and a checkpoint that it decodes.
struct Pair {
  std::string strategy, family;
  friend void append_to(std::string& out, const Pair& p) { out += str(p.strategy, " ", p.family); }
  friend std::ostream& operator<<(std::ostream& out, const Pair& p) { return out << str(p); }
};

class DiffusionDefects : public ::testing::TestWithParam<Pair> {};
class CudaDiffusionDefects : public ::testing::TestWithParam<Pair> {};

}  // namespace headrace
