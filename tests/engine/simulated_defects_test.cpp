// Defects that the simulator (tests/llm/engine_simulator.cpp) has found.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "engine/fake_model.h"
#include "headrace/engine/engine.h"

namespace headrace {
namespace {

using testing_support::FakeModel;
using testing_support::FakeText;

// The block has masks behind the context, which no page of the request's row holds and no step stores.
TEST(SimulatedDefects, ABlockThatReachesBehindTheContextRuns) {
  const FakeModel model(FakeText::States::kNone, nullptr,
                        DiffusionInfo{.mask_token_id = FakeText::kMask, .block_size = 4, .sub_block_size = 4});
  EngineConfig config{.max_context_len = 73, .strategy = "multi_bd"};
  config.runner = {.ops = &FakeModel::kernels(), .num_pages = 100, .page_size = 1};
  Engine engine(model, config);
  engine.add(std::vector<int32_t>(72, 5), {.max_tokens = 1, .temperature = 0});
  size_t tokens = 0;
  while (!engine.idle()) {
    for (const StepOutput& out : throw_if_failed(engine.step())) tokens += out.error ? 0 : 1;
    EXPECT_NO_THROW(engine.scheduler().audit());
  }
  EXPECT_EQ(tokens, 1u);
  EXPECT_EQ(engine.scheduler().free_pages(), 100);
}

EngineConfig causal_config(int32_t max_requests) {
  EngineConfig config{.max_requests = max_requests, .max_context_len = 64};
  config.runner = {.ops = &FakeModel::kernels(), .num_pages = 64, .page_size = 16, .num_states = max_requests};
  config.steps_ahead = EngineConfig::StepsAhead::kAlways;
  return config;
}

SamplingParams likeliest(int32_t max_tokens) {
  return {.max_tokens = max_tokens, .temperature = 0, .end_of_text = SamplingParams::EndOfText::kIgnored};
}

// The first request runs out of memory alone. In the same call the second one's pass throws.
TEST(SimulatedDefects, AFailedStepTakesNoErrorFromWhoFailedAloneBefore) {
  const FakeModel model(FakeText::States::kNone, nullptr);
  Engine engine(model, causal_config(1));
  const int64_t first = engine.add({5}, likeliest(4)), second = engine.add({6}, likeliest(4));
  engine.observe([&](StepMoment moment, const Sequence& s, const StepPlan&) {
    if (moment != StepMoment::kPlanned) return;
    model.passes().fails = 1;
    model.passes().error = s.id == first ? ErrorCode::kOutOfMemory : ErrorCode::kInternal;
  });
  const std::vector<StepOutput> outputs = engine.step();
  ASSERT_EQ(outputs.size(), 1u);
  EXPECT_EQ(outputs.front().sequence_id, first);
  ASSERT_TRUE(outputs.front().error);
  EXPECT_EQ(outputs.front().error->code(), ErrorCode::kOutOfMemory);
  EXPECT_FALSE(engine.has(second));
  ASSERT_FALSE(engine.idle());
  EXPECT_THROW(engine.step(), Error);
  EXPECT_TRUE(engine.idle());
}

// The step that runs out of memory has a row of a request that has ended since it was planned.
TEST(SimulatedDefects, ARequestBesideOneThatHasEndedDidNotRunOutOfMemoryAlone) {
  const FakeModel model(FakeText::States::kNone, nullptr);
  std::vector<int32_t> tokens;  // of the first request without a stop
  {
    Engine engine(model, causal_config(1));
    engine.add({5, 6}, likeliest(8));
    while (!engine.idle()) {
      for (const StepOutput& out : engine.step()) tokens.push_back(out.token.id);
    }
  }
  const auto stops_at = static_cast<size_t>(std::ranges::find(tokens, tokens[4]) - tokens.begin());
  ASSERT_GT(stops_at, 0u);
  SamplingParams stopped = likeliest(8);
  stopped.stop_token_ids = {tokens[4]};
  Engine engine(model, causal_config(2));
  const int64_t first = engine.add({5, 6}, stopped), second = engine.add({9}, likeliest(20));
  std::map<int64_t, size_t> counts;
  while (!engine.idle()) {
    if (counts[first] == stops_at) model.passes().fails = 1, model.passes().error = ErrorCode::kOutOfMemory;
    for (const StepOutput& out : throw_if_failed(engine.step())) ++counts[out.sequence_id];
    if (counts[first] > stops_at) model.passes().fails = 0;
  }
  EXPECT_EQ(counts[first], stops_at + 1);
  EXPECT_EQ(counts[second], 20u);
  EXPECT_EQ(model.passes().failed.size(), 1u);
}

}  // namespace
}  // namespace headrace
