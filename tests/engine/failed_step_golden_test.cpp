// What a step that failed leaves behind in real models: nothing from which a later request would go on wrongly.
#include <gtest/gtest.h>

#include <map>

#include "engine/strategy_pairs.h"

namespace headrace {
namespace {

using Texts = std::map<int64_t, std::vector<int32_t>>;  // by the place of the request

// A network one of whose passes runs to its end and fails then, so that all is written that a step may write.
class FailingOnce final : public Model {
 public:
  FailingOnce(const Model& model, int failing_pass) : model_(model), failing_pass_(failing_pass) {}
  const ModelInfo& info() const override { return model_.info(); }
  Tensor forward(const ForwardBatch& batch) const override {
    Tensor logits = model_.forward(batch);
    if (++passes_ == failing_pass_) throw Error(ErrorCode::kOutOfMemory, "could not allocate 7 bytes");
    return logits;
  }

 private:
  const Model& model_;
  int failing_pass_;
  mutable int passes_ = 0;
};

Texts texts_of(Engine& engine, const std::vector<Request>& requests) {
  std::map<int64_t, int64_t> place_of;
  for (const Request& one : requests) place_of.emplace(engine.add(one.prompt, one.params), std::ssize(place_of));
  Texts texts;
  while (!engine.idle()) {
    for (const StepOutput& out : engine.step()) texts[place_of.at(out.sequence_id)].push_back(out.token.id);
  }
  return texts;
}

void expect_nothing_wrong_left(const Model& network, EngineConfig config, const std::vector<int>& passes) {
  config.keep_text = SchedulerConfig::KeepText::kYes;
  config.runner.num_states = config.max_requests + 4;
  std::vector<Request> requests = {{prompt_of(37), greedy(24, 0.04f)}, {prompt_of(20, 1), greedy(24, 0.06f)}};
  if (config.strategy == "autoregressive") {
    for (Request& one : requests) one.params.decoding.threshold.reset();
  }
  Engine fresh(network, config);
  const Texts want = texts_of(fresh, requests);
  for (const int pass : passes) {
    SCOPED_TRACE(str("pass ", pass, " fails"));
    const FailingOnce model(network, pass);
    Engine engine(model, config);
    EXPECT_THROW(texts_of(engine, requests), Error);
    ASSERT_TRUE(engine.idle()) << "both were in it";
    EXPECT_EQ(texts_of(engine, requests), want);
    EXPECT_EQ(engine.scheduler().free_pages(), config.runner.num_pages);
    EXPECT_EQ(engine.scheduler().table().available_size(), config.max_requests);
  }
}

constexpr OpContext kStrict{.threads = 1, .determinism = Determinism::kStrict};

TEST_P(DiffusionDefects, AStepThatFailsLeavesNothingWrongBehind) {
  expect_nothing_wrong_left(*golden(GetParam().family, DType::kF32, kStrict),
                            config_of(GetParam().strategy, 2, kStrict), {1, 2, 3});
}

TEST(FailedStepsOfHybrids, LeaveNoWrongStateBehind) {
  for (const char* family : {"qwen3_next", "qwen3_5"}) {
    const auto model = golden(family, DType::kF32, kStrict);
    for (const auto ahead : {EngineConfig::StepsAhead::kNever, EngineConfig::StepsAhead::kAlways}) {
      SCOPED_TRACE(str(family, ahead == EngineConfig::StepsAhead::kNever ? "" : ", steps ahead"));
      EngineConfig config = config_of("autoregressive", 2, kStrict);
      config.steps_ahead = ahead;
      expect_nothing_wrong_left(*model, config, {1, 2, 9, 12, 13, 14, 20});
    }
  }
}

}  // namespace
}  // namespace headrace
