// What a step did to a request's tokens, as traces and the screen are told.
#include "headrace/llm/step_recorder.h"

#include <gtest/gtest.h>

#include <cmath>

#include "headrace/models/model_registry.h"
#include "support/source_tree.h"

namespace headrace {
namespace {

std::unique_ptr<Model> golden(const std::string& family) {
  return load_model(testing_support::golden_folder(family), {.dtype = DType::kF32, .context = {.threads = 1}});
}

// The reports of a request of `max_tokens`, and what the sequence held after each.
struct Step {
  StepReport report;
  std::vector<SampledToken> chosen;
};

std::vector<Step> steps_of(const Model& model, const std::string& strategy, SamplingParams params) {
  EngineConfig config;
  config.runner = {.context = {.threads = 1}, .num_pages = 16, .page_size = 16, .max_tokens = 64};
  config.max_context_len = 128;
  config.strategy = strategy;
  Engine engine(model, config);
  StepRecorder recorder;
  std::vector<SampledToken> chosen;
  engine.observe([&](StepMoment moment, const Sequence& s, const StepPlan& plan) {
    recorder.observe(moment, s, plan);
    chosen = s.chosen;
  });
  params.end_of_text = SamplingParams::EndOfText::kIgnored;
  engine.add({7, 8, 9, 10, 11}, params);
  std::vector<Step> steps;
  while (!engine.idle()) {
    engine.step();
    steps.push_back({recorder.report(), chosen});
  }
  return steps;
}

TEST(StepRecorder, ShowsTheLikeliestTokensOfACanvasWhileItIsDenoised) {
  const auto model = golden("diffusion_gemma");
  const int32_t canvas = model->info().diffusion->block_size;
  SamplingParams params{.max_tokens = canvas - 2, .seed = 3};
  params.decoding = {.schedule = DecodingParams::Schedule::kReference, .steps = 3};
  const std::vector<Step> steps = steps_of(*model, "diffusion_gemma", params);
  ASSERT_EQ(steps.size(), 4u);  // the prompt, three steps
  const auto count = static_cast<size_t>(canvas) - 2;
  for (size_t i = 0; i < 3; ++i) {
    const Step& step = steps[i];
    EXPECT_TRUE(step.report.decided.empty());  // a trace is told of what is decided, and nothing is
    ASSERT_EQ(step.report.pending.size(), count);
    for (size_t p = 0; p < count; ++p) {
      ASSERT_EQ(step.report.pending[p].has_value(), i > 0);
      if (i == 0) continue;
      EXPECT_EQ(step.report.pending[p]->id, step.chosen[p].best_id);
      EXPECT_EQ(step.report.pending[p]->confidence, std::exp(step.chosen[p].best_logprob));
    }
  }
  EXPECT_EQ(steps[3].report.decided.size(), count);
  EXPECT_TRUE(steps[3].report.pending.empty());
}

TEST(StepRecorder, LeavesMasksOfABlockUndecided) {
  const auto model = golden("sdar");
  SamplingParams params{.max_tokens = 7, .temperature = 0};
  params.decoding.threshold = 0.99f;
  const std::vector<Step> steps = steps_of(*model, "multi_bd", params);
  ASSERT_EQ(steps.size(), 7u);
  size_t decided = 0;
  for (const Step& step : steps) {
    EXPECT_EQ(step.report.decided.size(), 1u);
    decided += step.report.decided.size();
    size_t shown = 0;
    for (const auto& token : step.report.pending) shown += token ? 1 : 0;
    EXPECT_LE(shown, decided);
    EXPECT_LT(shown, 4u);
  }
  EXPECT_EQ(decided, 7u);
}

}  // namespace
}  // namespace headrace
