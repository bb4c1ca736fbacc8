// Decode steps as graphs give what they give without: skipped where there is no device.
#include <gtest/gtest.h>

#include "headrace/engine/engine.h"
#include "headrace/kernels/cuda_module.h"
#include "headrace/models/model_registry.h"
#include "support/device_mirror.h"

namespace headrace {
namespace {

class CudaGraphs : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (testing_support::mirrored_cuda_ops() == nullptr) GTEST_SKIP() << "no CUDA device";
  }
  // Ids that several requests of different lengths get, each greedily.
  static std::vector<std::vector<int32_t>> generated(RunnerConfig::Graphs graphs, std::string& ran) {
    DeviceRuntime& runtime = cuda_module().runtime(0);
    const OpContext context{.determinism = Determinism::kStrict, .stream = runtime.stream()};
    const std::string folder = std::string(HEADRACE_SOURCE_DIR) + "/tests/golden/" + GetParam();
    const auto model = load_model(folder, {.ops = &cuda_module().ops("cuda"), .context = context, .runtime = &runtime});
    Engine engine(*model, {.runner = {.runtime = &runtime,
                                      .context = context,
                                      .num_pages = 64,
                                      .page_size = 16,
                                      .num_states = 6,
                                      .graphs = graphs},
                           .max_requests = 6,
                           .max_context_len = 128});
    ran = engine.runner().describe();
    std::vector<std::vector<int32_t>> ids(6);
    for (int32_t r = 0; r < 6; ++r) {
      std::vector<int32_t> prompt;
      for (int32_t i = 0; i < 3 + 5 * r; ++i) prompt.push_back((i * 31 + r * 7) % 500);
      engine.add(prompt,
                 {.max_tokens = 8 + 3 * r, .temperature = 0, .end_of_text = SamplingParams::EndOfText::kIgnored});
    }
    while (!engine.idle()) {
      for (const StepOutput& out : engine.step()) ids[static_cast<size_t>(out.sequence_id - 1)].push_back(out.token.id);
    }
    return ids;
  }
};

TEST_P(CudaGraphs, GiveTheTokensOfStepsWithoutThem) {
  std::string ran, eager;
  const auto with = generated(RunnerConfig::Graphs::kRequired, ran);
  const auto without = generated(RunnerConfig::Graphs::kOff, eager);
  EXPECT_NE(ran.find("graphs for 1, 2, 4, 6 requests"), std::string::npos) << ran;
  EXPECT_NE(eager.find("no graphs: switched off"), std::string::npos) << eager;
  EXPECT_EQ(with, without);
}

INSTANTIATE_TEST_SUITE_P(Families, CudaGraphs, testing::Values("llama", "qwen3", "qwen3_5", "qwen3_moe", "qwen3_next"),
                         [](const auto& family) { return family.param; });

}  // namespace
}  // namespace headrace
