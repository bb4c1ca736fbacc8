// Steps of single tokens that are queued before the host has read the tokens of the step before: what comes out is what
// comes out without.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <set>

#include "engine/strategy_pairs.h"
#include "engine/test_device.h"
#include "engine/with_end_tokens.h"
#include "headrace/core/device_runtime.h"
#include "headrace/sampling/sampler.h"
#include "support/refusal.h"

namespace headrace::testing_support {
namespace {

using StepsAhead = EngineConfig::StepsAhead;

// Counts the rows that went through the model.
class CountedModel final : public Model {
 public:
  explicit CountedModel(const Model& model) : model_(model) {}
  const ModelInfo& info() const override { return model_.info(); }
  Tensor forward(const ForwardBatch& batch) const override {
    rows_ += batch.num_tokens();
    return model_.forward(batch);
  }
  int64_t rows() const { return rows_; }

 private:
  const Model& model_;
  mutable int64_t rows_ = 0;
};

struct Outcome {
  std::map<int64_t, std::vector<SampledToken>> tokens;
  std::map<int64_t, FinishReason> reasons;
  int64_t rows = 0;         // that went through the model, in steps without graphs
  int64_t graph_steps = 0;  // steps that were one launch
};

EngineConfig config_with(StepsAhead ahead, int32_t max_requests) {
  EngineConfig config = config_of("autoregressive", max_requests);
  config.runner.num_states = max_requests + 4;
  config.keep_text = SchedulerConfig::KeepText::kYes;
  config.steps_ahead = ahead;
  return config;
}

// Called with the number of steps so far before each.
using Events = std::function<void(Engine& engine, int32_t step)>;

Outcome outcome_of(const Model& network, const EngineConfig& config, const Events& events) {
  const CountedModel model(network);
  Engine engine(model, config);
  Outcome outcome;
  for (int32_t step = 0; step < 4 || !engine.idle(); ++step) {
    events(engine, step);
    for (const StepOutput& out : engine.step()) {
      outcome.tokens[out.sequence_id].push_back(out.token);
      if (out.finish_reason) outcome.reasons[out.sequence_id] = *out.finish_reason;
    }
  }
  outcome.rows = model.rows();
  outcome.graph_steps = engine.runner().num_graph_steps();
  EXPECT_EQ(engine.scheduler().free_pages(), config.runner.num_pages);
  return outcome;
}

void expect_same_outcome(const Outcome& got, const Outcome& want) {
  ASSERT_EQ(got.tokens.size(), want.tokens.size());
  for (const auto& [id, tokens] : want.tokens) {
    const std::vector<SampledToken>& found = got.tokens.at(id);
    ASSERT_EQ(found.size(), tokens.size()) << "request " << id;
    for (size_t i = 0; i < tokens.size(); ++i) {
      EXPECT_EQ(found[i].id, tokens[i].id) << "token " << i << " of request " << id;
      EXPECT_EQ(found[i].logprob, tokens[i].logprob) << "token " << i << " of request " << id;
    }
  }
  EXPECT_EQ(got.reasons, want.reasons);
}

SamplingParams likely(int32_t max_tokens) {
  return {.max_tokens = max_tokens, .temperature = 0, .end_of_text = SamplingParams::EndOfText::kIgnored};
}

SamplingParams drawn(int32_t max_tokens, uint64_t seed) {
  return {.max_tokens = max_tokens,
          .temperature = 0.9f,
          .top_k = 40,
          .top_p = 0.95f,
          .seed = seed,
          .end_of_text = SamplingParams::EndOfText::kIgnored};
}

struct Place {
  std::string family, device;
  friend void PrintTo(const Place& place, std::ostream* out) { *out << place.family << " on " << place.device; }
};

class StepsAheadOf : public testing::TestWithParam<Place> {
 protected:
  std::optional<TestDevice> device_;

  void SetUp() override {
    device_ = test_device(GetParam().device);
    if (!device_) GTEST_SKIP() << "no CUDA device";
  }
  std::unique_ptr<Model> network() const { return network_on(*device_); }
  Outcome outcome(const Model& model, StepsAhead ahead, int32_t max_requests, const Events& events) const {
    return outcome_on(*device_, model, ahead, max_requests, events);
  }
  // Both ways of running the same traffic; rows of the first beyond those of the second. The fake device's kernels are
  // the CPU's: there both are the CPU's tokens, too.
  int64_t expect_both_alike(int32_t max_requests, const Events& events,
                            const std::vector<int32_t>& eos_ids = {}) const {
    const auto some = network();
    const WithEndTokens model(*some, eos_ids);
    const Outcome ahead = outcome(model, StepsAhead::kAlways, max_requests, events),
                  plain = outcome(model, StepsAhead::kNever, max_requests, events);
    expect_same_outcome(ahead, plain);
    EXPECT_EQ(ahead.graph_steps > 0, device_->name != kOnCpu);
    if (device_->name == kOnFakeDevice) {
      const TestDevice cpu = *test_device(kOnCpu);
      const auto there = network_on(cpu);
      expect_same_outcome(ahead,
                          outcome_on(cpu, WithEndTokens(*there, eos_ids), StepsAhead::kNever, max_requests, events));
    }
    return ahead.rows - plain.rows;
  }

 private:
  static std::unique_ptr<Model> network_on(const TestDevice& device) {
    ModelOptions options = device.model_options(device.context(Determinism::kStrict));
    options.dtype = DType::kF32;
    return load_model(golden_folder(GetParam().family), options);
  }
  static Outcome outcome_on(const TestDevice& device, const Model& model, StepsAhead ahead, int32_t max_requests,
                            const Events& events) {
    EngineConfig config = config_with(ahead, max_requests);
    config.runner = device.with_place(config.runner, device.context(Determinism::kStrict));
    return outcome_of(model, config, events);
  }
};

TEST_P(StepsAheadOf, LikelyAndDrawnTokensAreTheSame) {
  EXPECT_EQ(expect_both_alike(3,
                              [](Engine& engine, int32_t step) {
                                if (step > 0) return;
                                engine.add(prompt_of(20), likely(40));
                                engine.add(prompt_of(5, 1), drawn(30, 7));
                                engine.add(prompt_of(33, 2), drawn(35, 8));
                              }),
            0)
      << "the end of a length is known beforehand";
}

TEST_P(StepsAheadOf, ARequestEndsByATokenAndItsStateAndTextAreKept) {
  const Events events = [](Engine& engine, int32_t step) {
    SamplingParams params = likely(60);
    params.end_of_text = SamplingParams::EndOfText::kStops;
    if (step == 0) engine.add(prompt_of(20), params);
    if (step == 1) engine.add(prompt_of(33, 1), likely(50));
    if (step == 52) engine.add(prompt_of(33, 1), likely(9));  // whose text is there
  };
  const Outcome free = outcome(*network(), StepsAhead::kNever, 2, [](Engine& engine, int32_t step) {
    if (step == 0) engine.add(prompt_of(20), likely(60));
  });
  std::vector<int32_t> eos_ids;  // the first token that the beginning does not have
  for (const SampledToken& token : free.tokens.at(1)) {
    const bool seen = std::ranges::any_of(free.tokens.at(1).begin(), free.tokens.at(1).begin() + 6,
                                          [&](const SampledToken& early) { return early.id == token.id; });
    if (!seen) eos_ids = {token.id};
    if (!seen) break;
  }
  const int64_t more = expect_both_alike(2, events, eos_ids);
  ASSERT_FALSE(eos_ids.empty());
  if (device_->name == kOnCpu) {
    EXPECT_EQ(more, 1) << "the row behind the end token ran in vain";
  }
}

// A step that is queued ahead is read where the model runs, which bans nothing.
TEST_P(StepsAheadOf, BannedEndTokensAreChosenByNoStep) {
  std::vector<int32_t> eos_ids;
  const auto run = [&](StepsAhead ahead, SamplingParams::EndOfText end_of_text) {
    const auto some = network();
    const WithEndTokens model(*some, eos_ids);
    return outcome(model, ahead, 2, [end_of_text](Engine& engine, int32_t step) {
      if (step > 0) return;
      SamplingParams banning = likely(40), drawing = drawn(30, 7);
      banning.end_of_text = drawing.end_of_text = end_of_text;
      engine.add(prompt_of(20), banning);
      engine.add(prompt_of(5, 1), drawing);
    });
  };
  const Outcome free = run(StepsAhead::kNever, SamplingParams::EndOfText::kIgnored);
  eos_ids = {free.tokens.at(1)[2].id, free.tokens.at(1)[20].id, free.tokens.at(2)[0].id};
  const Outcome plain = run(StepsAhead::kNever, SamplingParams::EndOfText::kBanned);
  expect_same_outcome(run(StepsAhead::kAlways, SamplingParams::EndOfText::kBanned), plain);
  for (const auto& [id, tokens] : plain.tokens) {
    EXPECT_EQ(tokens.size(), id == 1 ? 40u : 30u);
    for (const SampledToken& token : tokens) EXPECT_EQ(std::ranges::count(eos_ids, token.id), 0) << "request " << id;
  }
}

// By the tokens that the host has not read either.
TEST_P(StepsAheadOf, PenaltiesKnowAllTokens) {
  const auto penalised = [](SamplingParams params, float penalty) {
    params.repetition_penalty = penalty;
    return params;
  };
  const Events events = [&](Engine& engine, int32_t step) {
    if (step == 0) engine.add(prompt_of(20), penalised(likely(40), 1.5f));
    if (step == 0) engine.add(prompt_of(5, 1), likely(30));
    if (step == 6) engine.add(prompt_of(33, 2), penalised(drawn(25, 8), 1.1f));
    if (step == 9) engine.add(prompt_of(12, 3), penalised(likely(25), 0.8f));  // waits for a place
  };
  expect_both_alike(3, events);
  const auto model = network();
  const Outcome result = outcome(*model, StepsAhead::kAlways, 3, events);
  std::set<int32_t> ids;
  for (const SampledToken& token : result.tokens.at(1)) ids.insert(token.id);
  const Outcome free = outcome(*model, StepsAhead::kAlways, 3, [](Engine& engine, int32_t step) {
    if (step == 0) engine.add(prompt_of(20), likely(40));
  });
  std::set<int32_t> free_ids;
  for (const SampledToken& token : free.tokens.at(1)) free_ids.insert(token.id);
  EXPECT_GT(ids.size(), free_ids.size()) << "fewer repetitions";
}

TEST_P(StepsAheadOf, RequestsComeGoAndWait) {
  expect_both_alike(2, [](Engine& engine, int32_t step) {
    if (step == 0) engine.add(prompt_of(20), likely(30));
    if (step == 4) engine.add(prompt_of(40, 1), drawn(25, 3));
    if (step == 5) engine.add(prompt_of(18, 2), drawn(12, 4));  // waits for a place
    if (step == 11) engine.abort(1);
    if (step == 17) engine.add(prompt_of(20), likely(20));
  });
}

// The one that leaves has rows in the step that runs, and the one that comes is not in it.
TEST_P(StepsAheadOf, RequestsComeAndGoWhileAStepIsInFlight) {
  expect_both_alike(3, [](Engine& engine, int32_t step) {
    const size_t ahead = engine.config().steps_ahead == StepsAhead::kNever ? 0 : 1;
    if (step == 0) engine.add(prompt_of(20), likely(40));
    if (step == 0) engine.add(prompt_of(5, 1), drawn(40, 3));
    if (step == 6 || step == 14 || step == 22) {
      EXPECT_EQ(engine.runner().num_in_flight(), ahead);
    }
    if (step == 6) engine.add(prompt_of(9, 2), drawn(30, 4));
    if (step == 14) engine.abort(1);
    if (step == 22) engine.abort(2), engine.add(prompt_of(20), likely(8));
  });
}

// The first and the third have a page in common, which the first runs alone, so that a row each is left of their
// prompts when the second decodes already, before them: behind that step it stands between them.
TEST_P(StepsAheadOf, LastRowsOfPromptsRunBesideWhoDecodes) {
  expect_both_alike(3, [](Engine& engine, int32_t step) {
    if (step > 0) return;
    std::vector<int32_t> one = prompt_of(16), other = one;
    one.push_back(7), other.push_back(8);
    engine.add(one, likely(20));
    engine.add(prompt_of(3, 1), drawn(20, 5));
    engine.add(other, likely(20));
  });
}

TEST_P(StepsAheadOf, WhoComesDoesNotWaitUntilSomebodyEnds) {
  int32_t now = 0;
  int64_t newcomer = 0;
  const Outcome result = outcome(*network(), StepsAhead::kAlways, 2, [&](Engine& engine, int32_t step) {
    now = step;
    if (step == 0) engine.add(prompt_of(20), likely(30));
    if (step == 4) newcomer = engine.add(prompt_of(9, 1), likely(2));
    if (step == 8) engine.abort(newcomer);
  });
  EXPECT_EQ(result.tokens.at(newcomer).size(), 2u);
  EXPECT_GE(now, 29);
}

// Somebody joins or leaves in nearly every step, and prompts run in chunks: the device has work all the time.
TEST_P(StepsAheadOf, ItGoesOnWhilePromptsArriveAllTheTime) {
  const auto arrivals = [](Engine& engine, int32_t step) {
    if (step == 0) engine.add(prompt_of(20), likely(60));
    if (step % 3 == 0 && step < 45) engine.add(prompt_of(10 + step, step), drawn(4, static_cast<uint64_t>(step)));
    const bool ahead = engine.config().steps_ahead == StepsAhead::kAlways;
    if (step > 0 && step < 45) {
      EXPECT_EQ(engine.runner().num_in_flight(), ahead ? 1u : 0u) << "before step " << step;
    }
  };
  expect_both_alike(4, arrivals);
}

INSTANTIATE_TEST_SUITE_P(Families, StepsAheadOf,
                         testing::Values(Place{"qwen3", kOnCpu}, Place{"qwen3_next", kOnCpu}, Place{"qwen3_5", kOnCpu},
                                         Place{"qwen3", kOnFakeDevice}, Place{"qwen3_5", kOnFakeDevice},
                                         Place{"qwen3", kOnGpu}, Place{"qwen3_next", kOnGpu}, Place{"qwen3_5", kOnGpu}),
                         [](const auto& place) { return place.param.family + "_" + place.param.device; });

// Its logits are numbers for so many passes.
class BrokenLater final : public Model {
 public:
  BrokenLater(const Model& model, int good_passes) : model_(model), left_(good_passes) {}
  const ModelInfo& info() const override { return model_.info(); }
  Tensor forward(const ForwardBatch& batch) const override {
    Tensor logits = model_.forward(batch);
    if (left_-- <= 0) logits.data_as<float>()[3] = std::numeric_limits<float>::quiet_NaN();
    return logits;
  }

 private:
  const Model& model_;
  mutable int left_;
};

TEST(BrokenModels, AScoreThatIsNoNumberIsAnError) {
  const auto network = golden("qwen3", DType::kF32, {.threads = 1});
  const BrokenLater model(*network, 1);
  Engine engine(model, config_with(StepsAhead::kNever, 2));
  EXPECT_EQ(engine.score({1, 2, 3}).size(), 2u);
  const Refusal refusal = refusal_of([&] { engine.score({1, 2, 3}); });
  EXPECT_EQ(refusal.code, ErrorCode::kModelFile);
  EXPECT_EQ(refusal.sentence, str("engine: the logits behind token 0 are no numbers", kNotNumbers));
  EXPECT_TRUE(engine.idle());
}

TEST(StepsAheadOfBrokenModels, RequestsWhoseTokensAreLostEnd) {
  const auto network = golden("qwen3", DType::kF32, {.threads = 1});
  const BrokenLater model(*network, 3);
  const EngineConfig config = config_with(StepsAhead::kAlways, 2);
  Engine engine(model, config);
  engine.add({1, 2}, likely(9));
  for (int step = 0; step < 3; ++step) EXPECT_FALSE(engine.step().front().error);
  const std::vector<StepOutput> last = engine.step();
  ASSERT_EQ(last.size(), 1u);
  EXPECT_EQ(last.front().finish_reason, FinishReason::kError);
  EXPECT_EQ(last.front().error->code(), ErrorCode::kModelFile);
  EXPECT_TRUE(engine.idle());
  EXPECT_FALSE(engine.fault());
  EXPECT_EQ(engine.scheduler().free_pages(), config.runner.num_pages);
}

}  // namespace
}  // namespace headrace::testing_support
