// What requests may share of their pages, and that sharing changes no bit: B2 and B3 of docs/defects.md, for every
// strategy.
#include <algorithm>
#include <map>

#include "engine/strategy_pairs.h"
#include "headrace/core/device_runtime.h"
#include "headrace/ops/cuda_module.h"
#include "support/device_mirror.h"
#include "support/gpu.h"

namespace headrace {
namespace {

using testing_support::golden_folder;

// Strategies whose keys and values depend on nothing behind them, so that a text may go on from another's.
bool goes_on(const std::string& strategy) {
  return strategy != "full_attention" && strategy != "dual_cache" && strategy != "d2f";
}

EngineConfig keeping(const std::string& strategy, int32_t num_pages) {
  EngineConfig config = config_of(strategy, 2, {.threads = 1, .determinism = Determinism::kStrict});
  config.runner.num_pages = num_pages;
  config.keep_text = SchedulerConfig::KeepText::kYes;
  return config;
}

TEST_P(DiffusionDefects, B02_IdenticalPromptsShareNoPageThatOneOfThemWrites) {
  const auto model = golden(GetParam().family, DType::kF32, {.threads = 1, .determinism = Determinism::kStrict});
  Engine engine(*model, keeping(GetParam().strategy, 64));
  std::map<int64_t, std::vector<int32_t>> pages;
  std::map<int64_t, int32_t> first;  // of the prompt, which it fills
  engine.observe([&](StepMoment moment, const Sequence& s, const StepPlan&) {
    pages[s.id] = s.pages;
    first[s.id] = s.pages.front();
    if (moment == StepMoment::kPlanned) return;
    for (size_t i = static_cast<size_t>(s.num_cached / 16); i < s.pages.size(); ++i) {
      if (!engine.has(3 - s.id)) continue;
      EXPECT_EQ(std::ranges::count(pages[3 - s.id], s.pages[i]), 0) << "page " << i << " of request " << s.id;
    }
  });
  std::map<int64_t, std::vector<int32_t>> ids;
  for (int i = 0; i < 2; ++i) engine.add(prompt_of(21), greedy(24, 0.03f));
  while (!engine.idle()) {
    for (const StepOutput& out : engine.step()) ids[out.sequence_id].push_back(out.token.id);
  }
  EXPECT_EQ(first.at(1) == first.at(2), goes_on(GetParam().strategy)) << "they do share, or this test says nothing";
  EXPECT_EQ(ids.at(1), ids.at(2));
}

// The tokens, with the bits of their probabilities, and the first position that was computed.
struct Answer {
  std::vector<SampledToken> tokens;
  int32_t from = -1;
};

Answer answered(Engine& engine, const Request& request) {
  Answer answer;
  engine.observe([&answer](StepMoment, const Sequence&, const StepPlan& plan) {
    if (answer.from < 0) answer.from = plan.spans.front().keys.phys0;
  });
  engine.add(request.prompt, request.params);
  while (!engine.idle()) {
    for (const StepOutput& out : engine.step()) answer.tokens.push_back(out.token);
  }
  return answer;
}

void expect_same_bits(const Answer& got, const Answer& want) {
  ASSERT_EQ(got.tokens.size(), want.tokens.size());
  for (size_t i = 0; i < got.tokens.size(); ++i) {
    EXPECT_EQ(got.tokens[i].id, want.tokens[i].id) << i;
    EXPECT_EQ(got.tokens[i].logprob, want.tokens[i].logprob) << i;
  }
}

// The request twice at the same time: the pages that its prompt fills are in both, others may be in both where they
// hold the same text, and the bits are those of a run by itself.
void expect_two_to_share(const Model& model, Engine& engine, const Request& request) {
  const std::string& strategy = engine.config().strategy;
  EngineConfig alone = engine.config();
  alone.keep_text = SchedulerConfig::KeepText::kNo;
  alone.runner.max_tokens = 256;
  Engine fresh(model, alone);
  const Answer want = answered(fresh, request);
  std::map<int64_t, std::vector<int32_t>> pages;
  std::map<int64_t, Answer> got;
  engine.observe([&pages](StepMoment, const Sequence& s, const StepPlan&) { pages[s.id] = s.pages; });
  for (int i = 0; i < 2; ++i) engine.add(request.prompt, request.params);
  while (!engine.idle()) {
    for (const StepOutput& out : engine.step()) got[out.sequence_id].tokens.push_back(out.token);
  }
  for (const auto& [id, answer] : got) expect_same_bits(answer, want);
  const std::vector<int32_t>&first = pages.begin()->second, &second = pages.rbegin()->second;
  const size_t shared = goes_on(strategy) ? request.prompt.size() / 16 : 0;
  ASSERT_EQ(first.size(), second.size());
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(std::ranges::count(second, first[i]), first[i] == second[i] ? 1 : 0) << "page " << i;
    EXPECT_TRUE(i >= shared || first[i] == second[i]) << "page " << i;
  }
}

TEST_P(DiffusionDefects, B03_AFollowUpGoesOnBehindTheGeneratedTextAndChangesNoBit) {
  const auto model = golden(GetParam().family, DType::kF32, {.threads = 1, .determinism = Determinism::kStrict});
  Engine engine(*model, keeping(GetParam().strategy, 64));
  Request request{prompt_of(21), greedy(40, 0.03f)};
  for (const SampledToken& token : answered(engine, request).tokens) request.prompt.push_back(token.id);
  for (const int32_t id : {7, 8, 9}) request.prompt.push_back(id);
  Engine fresh(*model, config_of(GetParam().strategy, 2, {.threads = 1, .determinism = Determinism::kStrict}));
  const Answer got = answered(engine, request), want = answered(fresh, request);
  EXPECT_EQ(want.from, 0);
  if (goes_on(GetParam().strategy)) {
    EXPECT_GE(got.from, 31) << "behind the prompt of 21, in whole pages; a shifted model repeats a row";
  } else {
    EXPECT_EQ(got.from, 0);
  }
  expect_same_bits(got, want);
  EXPECT_EQ(engine.scheduler().free_pages(), 64);
}

TEST_P(DiffusionDefects, B03_KeptTextGivesWayToRequestsAndTwoThatBeginWithItChangeNoBit) {
  const auto model = golden(GetParam().family, DType::kF32, {.threads = 1, .determinism = Determinism::kStrict});
  Engine engine(*model, keeping(GetParam().strategy, 12));
  for (const int32_t seed : {1, 2, 1, 3, 4, 5, 1, 2}) {  // more text than the pool holds
    const Request request{prompt_of(37, seed), greedy(20, 0.03f)};
    Engine fresh(*model, config_of(GetParam().strategy, 2, {.threads = 1, .determinism = Determinism::kStrict}));
    expect_same_bits(answered(engine, request), answered(fresh, request));
    EXPECT_EQ(engine.scheduler().free_pages(), 12);
  }
  expect_two_to_share(*model, engine, {prompt_of(37, 1), greedy(20, 0.03f)});
}

TEST_P(DiffusionDefects, B03_EqualPromptsThatComeTogetherShareTheirWholePagesAndChangeNoBit) {
  const auto model = golden(GetParam().family, DType::kF32, {.threads = 1, .determinism = Determinism::kStrict});
  for (const int64_t rows : {256, 50}) {  // at once, and a prompt in two steps
    EngineConfig config = keeping(GetParam().strategy, 12);
    config.runner.max_tokens = goes_on(GetParam().strategy) ? rows : 256;
    Engine engine(*model, config);
    expect_two_to_share(*model, engine, {prompt_of(37, 1), greedy(20, 0.03f)});
  }
}

TEST_P(CudaDiffusionDefects, B03_EqualPromptsThatComeTogetherShareTheirWholePagesAndChangeNoBit) {
  if (testing_support::mirrored_cuda_ops() == nullptr) GTEST_SKIP() << "no CUDA device";
  DeviceRuntime& runtime = testing_support::gpu();
  const OpContext strict{.threads = 1, .determinism = Determinism::kStrict, .stream = runtime.stream()};
  const auto model =
      load_model(golden_folder(GetParam().family),
                 {.dtype = DType::kF32, .ops = &cuda_module().ops("cuda"), .context = strict, .runtime = &runtime});
  EngineConfig config = keeping(GetParam().strategy, 12);
  config.runner.context = strict;
  config.runner.runtime = &runtime;
  for (const int32_t prompt_len : {37, 17}) {
    Engine engine(*model, config);
    expect_two_to_share(*model, engine, {prompt_of(prompt_len, 1), greedy(20, 0.03f)});
  }
}

}  // namespace
}  // namespace headrace
