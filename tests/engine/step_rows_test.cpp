// The tokens of a step, chosen from the time of the first long one.
#include "headrace/engine/step_rows.h"

#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <thread>
#include <vector>

#include "headrace/engine/engine.h"

namespace headrace {
namespace {

TEST(StepRows, TakeAboutATenthOfASecond) {
  struct Row {
    int32_t rows;
    double seconds;
    int32_t least, most, want;
  };
  for (const Row& r : {Row{512, 0.1, 256, 512, 512}, Row{512, 0.2, 256, 512, 256}, Row{512, 50, 256, 512, 256},
                       Row{512, 0.136, 256, 512, 256}, Row{512, 0.133, 256, 512, 512}, Row{300, 0.01, 256, 16384, 3072},
                       Row{8192, 0.1, 256, 8192, 8192}, Row{8192, 1e-9, 256, 8100, 8100}, Row{256, 1, 300, 8192, 300},
                       Row{1 << 24, std::numeric_limits<double>::min(), 256, 1 << 24, 1 << 24}}) {
    EXPECT_EQ(rows_of_step(r.rows, r.seconds, r.least, r.most), r.want) << r.rows << " in " << r.seconds;
  }
}

// A step of 256 rows or more takes `pause`.
class PausingModel final : public Model {
 public:
  explicit PausingModel(std::chrono::milliseconds pause) : pause_(pause) {
    info_ = {.architecture = "pausing",
             .vocab_size = 8,
             .context_length = 4096,
             .num_layers = 1,
             .kv_groups = {{{1, 1, 1}, {0}}},
             .full_attn_layer_ids = {0},
             .dtype = DType::kF32};
  }
  const ModelInfo& info() const override { return info_; }
  Tensor forward(const ForwardBatch& batch) const override {
    rows.push_back(batch.num_tokens());
    if (batch.num_tokens() >= 256) std::this_thread::sleep_for(pause_);
    return Tensor::zeros(DType::kF32, {std::ssize(batch.logits_rows), 8});
  }
  mutable std::vector<int64_t> rows;  // of each step

 private:
  ModelInfo info_;
  std::chrono::milliseconds pause_;
};

std::vector<int64_t> rows_of_prompts(std::chrono::milliseconds pause, std::optional<int32_t> least) {
  const PausingModel model(pause);
  EngineConfig config{.runner = {.num_pages = 64, .page_size = 64, .max_tokens = 512}, .max_context_len = 4096};
  config.least_step_rows = least;
  Engine engine(model, config);
  for (const int32_t length : {100, 1200, 700}) {
    engine.add(std::vector<int32_t>(static_cast<size_t>(length), 1), {.max_tokens = 1, .temperature = 0});
    while (!engine.idle()) engine.step();
  }
  return model.rows;
}

using Rows = std::vector<int64_t>;
using std::chrono::milliseconds;

TEST(StepRows, FollowFromTheFirstStepOf256) {
  EXPECT_EQ(rows_of_prompts(milliseconds(200), 256), (Rows{100, 512, 256, 256, 176, 256, 256, 188}));
  EXPECT_EQ(rows_of_prompts(milliseconds(200), 320), (Rows{100, 512, 320, 320, 48, 320, 320, 60}));
}

TEST(StepRows, AreNotMeasuredUnlessAsked) {
  EXPECT_EQ(rows_of_prompts(milliseconds(200), std::nullopt), (Rows{100, 512, 512, 176, 512, 188}));
}

}  // namespace
}  // namespace headrace
