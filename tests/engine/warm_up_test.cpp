// A warm-up of a real hybrid model: it runs, and what is generated afterwards is as if it had not.
#include <gtest/gtest.h>

#include "engine/golden_batches.h"
#include "headrace/engine/engine.h"

namespace headrace::testing_support {
namespace {

std::vector<int32_t> tokens_of(Engine& engine) {
  std::vector<int32_t> tokens;
  engine.add({3, 1, 4, 1, 5, 9, 2, 6}, {.max_tokens = 12, .temperature = 0});
  while (!engine.idle()) {
    for (const StepOutput& out : engine.step()) tokens.push_back(out.token.id);
  }
  return tokens;
}

TEST(WarmUp, LeavesNothingBehindInAHybrid) {
  const auto model = load_model(golden_folder("qwen3_5"), {.dtype = DType::kF32});
  const EngineConfig config{.runner = {.num_pages = 4, .page_size = 16, .max_tokens = 64}, .max_context_len = 64};
  Engine fresh(*model, config), warm(*model, config);
  {
    const WarmupScope scope(warm.runner().metadata_source());
    warm.add(std::vector<int32_t>(150, 7), {.max_tokens = 2});
    while (!warm.idle()) EXPECT_TRUE(warm.step().empty());
  }
  EXPECT_EQ(warm.counters().rows, 0);
  EXPECT_EQ(tokens_of(warm), tokens_of(fresh));
}

}  // namespace
}  // namespace headrace::testing_support
