// What a step or a request that failed leaves behind in real models: nothing from which another request would go on
// wrongly.
#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "engine/poisoned_model.h"
#include "engine/strategy_pairs.h"
#include "headrace/core/device_runtime.h"
#include "headrace/ops/cuda_module.h"
#include "support/device_mirror.h"
#include "support/gpu.h"

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
    if (++passes_ == failing_pass_) throw Error(ErrorCode::kInternal, "no reason");
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

using Tokens = std::map<int64_t, std::vector<SampledToken>>;

// Returns the tokens, and the errors of requests that fail.
std::pair<Tokens, std::map<int64_t, Error>> tokens_of(Engine& engine) {
  std::pair<Tokens, std::map<int64_t, Error>> all;
  while (!engine.idle()) {
    for (const StepOutput& out : engine.step()) {
      if (out.error) {
        all.second.emplace(out.sequence_id, *out.error);
      } else {
        all.first[out.sequence_id].push_back(out.token);
      }
    }
  }
  return all;
}

void expect_tokens(const std::vector<SampledToken>& got, std::span<const SampledToken> want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].id, want[i].id) << i;
    EXPECT_EQ(got[i].logprob, want[i].logprob) << i;
  }
}

// Where a test runs. Null: a CPU.
struct Place {
  const OpSet* ops = nullptr;
  DeviceRuntime* runtime = nullptr;

  OpContext context() const {
    OpContext strict{.threads = 1, .determinism = Determinism::kStrict};
    if (runtime != nullptr) strict.stream = runtime->stream();
    return strict;
  }
  std::unique_ptr<Model> model(const std::string& family) const {
    const ModelOptions options{.dtype = DType::kF32, .ops = ops, .context = context(), .runtime = runtime};
    return load_model(testing_support::golden_folder(family), options);
  }
  // Without graphs, which would run without PoisonedModel.
  EngineConfig config(const std::string& strategy) const {
    EngineConfig config = config_of(strategy, 3, context());
    config.runner.runtime = runtime;
    config.runner.graphs = RunnerConfig::Graphs::kOff;
    config.runner.num_states = config.max_requests + 4;
    config.keep_text = SchedulerConfig::KeepText::kYes;
    return config;
  }
};

Place on_cuda() { return {&cuda_module().ops("cuda"), &testing_support::gpu()}; }

// Of three requests the second fails by row `index` of its logits, once it has run `forwards` passes. Expects the
// others to get the bits of a run alone, and then itself, behind what is cached.
void expect_it_fails_alone(const Model& network, const EngineConfig& config, const std::vector<Request>& requests,
                           int32_t forwards, int32_t index) {
  SCOPED_TRACE(str("row ", index, " after ", forwards, " passes"));
  DeviceRuntime& runtime = config.runner.runtime != nullptr ? *config.runner.runtime : cpu_runtime();
  testing_support::PoisonedModel model(network, runtime);
  Engine engine(model, config);
  bool poisoned = false;
  engine.observe([&](StepMoment, const Sequence& s, const StepPlan&) {
    if (s.id != 2 || s.num_forwards < forwards || std::exchange(poisoned, true)) return;
    model.poison({s.table_row, index});
  });
  for (const Request& one : requests) engine.add(one.prompt, one.params);
  const auto [got, errors] = tokens_of(engine);
  ASSERT_TRUE(poisoned && model.done());
  ASSERT_TRUE(errors.size() == 1 && errors.contains(2));
  EXPECT_EQ(errors.at(2).code(), ErrorCode::kModelFile);
  engine.add(requests[1].prompt, requests[1].params);
  const std::vector<SampledToken> again = tokens_of(engine).first.at(4);
  for (const int64_t id : {1, 2, 3}) {
    SCOPED_TRACE(str("request ", id));
    Engine alone(network, config);
    alone.add(requests[static_cast<size_t>(id) - 1].prompt, requests[static_cast<size_t>(id) - 1].params);
    const std::vector<SampledToken> want = tokens_of(alone).first.at(1);
    expect_tokens(id == 2 ? again : got.at(id), want);
    if (id != 2 || !got.contains(2)) continue;
    ASSERT_LT(got.at(2).size(), want.size());
    expect_tokens(got.at(2), std::span(want).first(got.at(2).size()));
  }
  EXPECT_EQ(engine.scheduler().free_pages(), config.runner.num_pages);
  EXPECT_EQ(engine.scheduler().table().available_size(), config.max_requests);
}

void expect_diffusion_to_fail_alone(const Pair& pair, const Place& place) {
  const auto model = place.model(pair.family);
  const std::vector<Request> requests = {
      {prompt_of(37), greedy(24, 0.04f)}, {prompt_of(20, 1), greedy(24, 0.06f)}, {prompt_of(9, 2), greedy(20, 0.05f)}};
  for (const int32_t forwards : {0, 1, 2}) {
    for (const int32_t index : {0, 100}) {
      expect_it_fails_alone(*model, place.config(pair.strategy), requests, forwards, index);
    }
  }
}

TEST_P(DiffusionDefects, ARowThatIsNoNumberEndsItsRequestAlone) { expect_diffusion_to_fail_alone(GetParam(), {}); }

TEST_P(CudaDiffusionDefects, ARowThatIsNoNumberEndsItsRequestAlone) {
  if (testing_support::mirrored_cuda_ops() == nullptr) GTEST_SKIP() << "no CUDA device";
  expect_diffusion_to_fail_alone(GetParam(), on_cuda());
}

void expect_causal_to_fail_alone(const std::string& family, EngineConfig::StepsAhead ahead, const Place& place) {
  SCOPED_TRACE(str(family, ahead == EngineConfig::StepsAhead::kNever ? "" : ", steps ahead"));
  const auto model = place.model(family);
  EngineConfig config = place.config("autoregressive");
  config.steps_ahead = ahead;
  std::vector<Request> requests = {
      {prompt_of(37), greedy(24, 1)}, {prompt_of(36, 1), greedy(24, 1)}, {prompt_of(9, 2), greedy(20, 1)}};
  for (Request& one : requests) one.params.decoding.threshold.reset();
  requests[2].params.temperature = 0.8f;
  for (const int32_t forwards : {0, 1, 6, 14}) expect_it_fails_alone(*model, config, requests, forwards, 0);
}

TEST(FailedRequestsOfCausalModels, LeaveTheOthersAlone) {
  using StepsAhead = EngineConfig::StepsAhead;
  for (const char* family : {"qwen3", "qwen3_next", "qwen3_5"}) {
    for (const StepsAhead ahead : {StepsAhead::kNever, StepsAhead::kAlways}) {
      expect_causal_to_fail_alone(family, ahead, {});
    }
  }
}

TEST(CudaFailedRequestsOfCausalModels, LeaveTheOthersAlone) {
  using StepsAhead = EngineConfig::StepsAhead;
  if (testing_support::mirrored_cuda_ops() == nullptr) GTEST_SKIP() << "no CUDA device";
  for (const char* family : {"qwen3", "qwen3_next", "qwen3_5"}) {
    for (const StepsAhead ahead : {StepsAhead::kNever, StepsAhead::kOnDevice}) {
      expect_causal_to_fail_alone(family, ahead, on_cuda());
    }
  }
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
