// Log-probabilities of prompts and of the likeliest tokens: those of the tokens scored one text at a time, whatever
// else runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "engine/strategy_pairs.h"
#include "engine/test_device.h"
#include "support/refusal.h"

namespace headrace::testing_support {
namespace {

using StepsAhead = EngineConfig::StepsAhead;

struct LogprobCase {
  std::string family, device;
  StepsAhead steps_ahead;
  friend void PrintTo(const LogprobCase& c, std::ostream* out) { *out << c.family << " on " << c.device; }
};

class Logprobs : public testing::TestWithParam<LogprobCase> {
 protected:
  void SetUp() override {
    device_ = test_device(GetParam().device);
    if (!device_) GTEST_SKIP() << "no CUDA device";
    ModelOptions options = device_->model_options(strict());
    options.dtype = DType::kF32;
    model_ = load_model(golden_folder(GetParam().family), options);
  }
  OpContext strict() const { return device_->context(Determinism::kStrict); }
  EngineConfig config(int32_t max_requests) const {
    EngineConfig config = config_of("autoregressive", max_requests);
    config.runner = device_->with_place(config.runner, strict());
    config.runner.max_tokens = 24;  // prompts run in several steps
    config.runner.num_states = max_requests + 8;
    config.keep_text = SchedulerConfig::KeepText::kYes;
    config.steps_ahead = GetParam().steps_ahead;
    return config;
  }
  std::vector<float> scores_of(const std::vector<int32_t>& tokens) const {
    EngineConfig alone = config(1);
    alone.runner.max_tokens = 128;
    return Engine(*model_, alone).score(tokens);
  }

  std::optional<TestDevice> device_;
  std::unique_ptr<Model> model_;
};

struct ScoredAnswer {
  std::vector<PromptToken> prompt;
  std::vector<SampledToken> tokens;
  std::vector<std::vector<TokenLogprob>> top;
};

std::map<int64_t, ScoredAnswer> scored_answers(Engine& engine, const std::function<void(int32_t)>& before_step = {}) {
  std::map<int64_t, ScoredAnswer> answers;
  for (int32_t step = 0; !engine.idle(); ++step) {
    if (before_step) before_step(step);
    for (StepOutput& out : throw_if_failed(engine.step())) {
      ScoredAnswer& answer = answers[out.sequence_id];
      if (!out.prompt_logprobs.empty()) answer.prompt = std::move(out.prompt_logprobs);
      answer.tokens.push_back(out.token);
      answer.top.push_back(std::move(out.top));
    }
    engine.scheduler().audit();
  }
  return answers;
}

SamplingParams scoring(int32_t max_tokens, std::optional<int32_t> prompt_logprobs, int32_t top_logprobs = 0) {
  SamplingParams params = greedy(max_tokens, 0);
  params.decoding = {};
  params.prompt_logprobs = prompt_logprobs, params.top_logprobs = top_logprobs;
  return params;
}

void expect_scores(const std::vector<PromptToken>& got, const std::vector<int32_t>& prompt,
                   const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got[i].token.id, prompt[i + 1]) << "token " << i + 1;
    EXPECT_EQ(got[i].token.logprob, want[i]) << "token " << i + 1;
  }
}

TEST_P(Logprobs, OfAPromptAreThoseOfItsTextAlone) {
  Engine engine(*model_, config(4));
  const std::vector<int32_t> prompt = prompt_of(70), other = prompt_of(45, 1);
  engine.add(prompt, scoring(3, {}));  // its text is in the cache before the next one comes
  scored_answers(engine);
  engine.add(other, scoring(20, {}));
  const int64_t id = engine.add(prompt, scoring(4, 0)), id_of_other = engine.add(other, scoring(1, 2));
  const auto answers = scored_answers(engine);
  expect_scores(answers.at(id).prompt, prompt, scores_of(prompt));
  expect_scores(answers.at(id_of_other).prompt, other, scores_of(other));
  EXPECT_EQ(answers.at(id).tokens.size(), 4u);
}

TEST_P(Logprobs, OfAPromptAreTheSameBehindAPreemption) {
  Engine engine(*model_, config(2));
  const std::vector<int32_t> prompt = prompt_of(70);
  const int64_t id = engine.add(prompt, scoring(6, 1));
  const auto answers = scored_answers(engine, [&](int32_t step) {
    if (step == 1 || step == 2 || step == 6) {
      EXPECT_TRUE(engine.preempt(id)) << step;
    }
  });
  expect_scores(answers.at(id).prompt, prompt, scores_of(prompt));
  EXPECT_GT(engine.scheduler().num_preempted(), 1);
}

TEST_P(Logprobs, OfTheLikeliestAreDescendingAndThoseOfTheirTexts) {
  Engine engine(*model_, config(2));
  const std::vector<int32_t> prompt = prompt_of(30);
  engine.add(prompt_of(9, 1), scoring(12, {}));
  SamplingParams params = scoring(5, 4, 6);
  params.repetition_penalty = 1.3f;  // log-probabilities are the model's all the same
  const int64_t id = engine.add(prompt, params);
  const ScoredAnswer answer = scored_answers(engine).at(id);
  ASSERT_EQ(answer.top.size(), 5u);
  std::vector<int32_t> text = prompt;
  for (size_t i = 0; i < answer.top.size(); ++i) {
    const std::vector<TokenLogprob>& top = answer.top[i];
    ASSERT_EQ(top.size(), 6u);
    EXPECT_TRUE(std::ranges::is_sorted(top, std::ranges::greater(), &TokenLogprob::logprob));
    for (const TokenLogprob& one : top) {
      std::vector<int32_t> longer = text;
      longer.push_back(one.id);
      EXPECT_EQ(one.logprob, scores_of(longer).back()) << "token " << one.id << " at place " << i;
    }
    text.push_back(answer.tokens[i].id);
  }
  const std::vector<float> scores = scores_of(prompt);
  for (size_t i = 0; i < answer.prompt.size(); ++i) {
    const std::vector<TokenLogprob>& top = answer.prompt[i].top;
    ASSERT_EQ(top.size(), 4u);
    EXPECT_GE(top.front().logprob, scores[i]);
    const auto same = std::ranges::find(top, prompt[i + 1], &TokenLogprob::id);
    if (same != top.end()) {
      EXPECT_EQ(same->logprob, scores[i]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Places, Logprobs,
                         testing::Values(LogprobCase{"qwen3", kOnCpu, StepsAhead::kNever},
                                         LogprobCase{"qwen3", kOnCpu, StepsAhead::kAlways},
                                         LogprobCase{"qwen3_5", kOnCpu, StepsAhead::kAlways},
                                         LogprobCase{"qwen3", kOnFakeDevice, StepsAhead::kAlways},
                                         LogprobCase{"qwen3_5", kOnFakeDevice, StepsAhead::kOnDevice},
                                         LogprobCase{"qwen3", kOnGpu, StepsAhead::kOnDevice},
                                         LogprobCase{"qwen3_next", kOnGpu, StepsAhead::kOnDevice}),
                         [](const auto& c) {
                           return c.param.family + "_" + c.param.device +
                                  (c.param.steps_ahead == StepsAhead::kNever ? "" : "_ahead");
                         });

// Counts rows of logits.
class LogitsCounter final : public Model {
 public:
  explicit LogitsCounter(const Model& model) : model_(model) {}
  const ModelInfo& info() const override { return model_.info(); }
  Tensor forward(const ForwardBatch& batch) const override {
    most_ = std::max(most_, batch.logits_rows.size());
    return model_.forward(batch);
  }
  size_t most() const { return most_; }

 private:
  const Model& model_;
  mutable size_t most_ = 0;
};

TEST(LogprobRows, AreAtMost512InAStep) {
  const auto network = golden("qwen3", DType::kF32, {.threads = 2});
  const LogitsCounter model(*network);
  EngineConfig config = config_of("autoregressive", 4, {.threads = 2});
  config.runner.num_pages = 512, config.runner.max_tokens = config.max_context_len = 2048;
  Engine engine(model, config);
  for (const int32_t length : {700, 900, 300}) engine.add(prompt_of(length, length), scoring(1, 0));
  const auto answers = scored_answers(engine);
  for (const auto& [id, answer] : answers) EXPECT_EQ(answer.prompt.size(), id == 1 ? 699u : id == 2 ? 899u : 299u);
  EXPECT_LE(model.most(), 512u + 3u);
  EXPECT_GT(model.most(), 256u);
}

}  // namespace
}  // namespace headrace::testing_support
