// Every family's weights as blocks that are made at load.
#include <gtest/gtest.h>

#include "headrace/core/device_runtime.h"
#include "headrace/models/model_registry.h"
#include "support/source_tree.h"

namespace headrace {
namespace {

using testing_support::golden_folder;

int64_t weight_bytes(const std::string& family, const ModelOptions& options) {
  return load_model(golden_folder(family), options)->info().weight_bytes;
}

// Q8_0 has 0.53 of bfloat16's bytes. `share`: a little more than the golden checkpoint's, in which some rows, of 24,
// 40, 48 or 112 columns, are no whole blocks.
TEST(QuantizedModels, MatricesOfEveryFamilyBecomeBlocks) {
  const std::vector<std::pair<std::string, double>> families = {{"llama", 0.54},
                                                                {"qwen2", 0.54},
                                                                {"qwen3", 0.54},
                                                                {"qwen3_moe", 0.64},
                                                                {"qwen3_next", 0.66},
                                                                {"qwen3_5", 0.54},
                                                                {"qwen3_5_moe", 0.66},
                                                                {"qwen3_5_released", 0.54},
                                                                {"llada", 0.54},
                                                                {"llada_moe", 0.54},
                                                                {"llada2", 0.70},
                                                                {"dream", 0.54},
                                                                {"diffucoder", 0.95},
                                                                {"sdar", 0.54},
                                                                {"sdar_moe", 0.54},
                                                                {"fast_dllm_v2", 0.54},
                                                                {"stable_diffcoder", 0.54},
                                                                {"diffusion_gemma", 0.58},
                                                                {"qwen3_5_moe_released", 0.66}};
  for (const auto& [family, share] : families) {
    for (const std::optional<uint64_t> seed : {std::optional<uint64_t>(), std::optional<uint64_t>(1)}) {
      const int64_t floats = weight_bytes(family, {.random_weights = seed}),
                    blocks = weight_bytes(family, {.random_weights = seed, .quantize = QuantPreset::kQ8_0});
      EXPECT_LT(static_cast<double>(blocks), share * static_cast<double>(floats)) << family;
    }
  }
}

}  // namespace
}  // namespace headrace
