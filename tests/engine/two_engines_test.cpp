// Two engines in two threads, each with a runtime of its own on one device: each decides what it decides alone, to the
// bit. Cases of a GPU are skipped where there is none.
#include <gtest/gtest.h>

#include <array>
#include <future>
#include <latch>

#include "engine/test_device.h"
#include "headrace/core/device_runtime.h"
#include "headrace/engine/engine.h"
#include "headrace/models/model_registry.h"
#include "support/source_tree.h"

namespace headrace {
namespace {

using testing_support::kOnCpu, testing_support::kOnFakeDevice, testing_support::kOnGpu, testing_support::test_device,
    testing_support::TestDevice;

struct Case {
  std::string device, family, strategy = "autoregressive";
  std::optional<int32_t> block_size = {};
  std::optional<DType> dtype = {};  // in place of the checkpoint's
  friend void PrintTo(const Case& c, std::ostream* out) {
    *out << c.device << ": " << c.family << " by " << c.strategy;
  }
};

constexpr int32_t kRequests = 5;

// A runtime that nobody shares. The CPU has none.
std::unique_ptr<DeviceRuntime> new_runtime(const std::string& device) {
  if (device == kOnFakeDevice) return std::make_unique<bench::FakeDevice>(cpu::select_kernel_set());
  return device == kOnCpu ? nullptr : cuda_module().make_runtime(0);
}

TestDevice place_on(DeviceRuntime* runtime, const std::string& device) {
  if (runtime == nullptr) return *test_device(kOnCpu);
  if (device == kOnFakeDevice) return {device, runtime, &static_cast<bench::FakeDevice*>(runtime)->ops()};
  return {device, runtime, &cuda_module().ops(device)};
}

struct Answers {
  std::vector<std::vector<int32_t>> ids = std::vector<std::vector<int32_t>>(kRequests);
  std::vector<std::vector<float>> logprobs = std::vector<std::vector<float>>(kRequests);
  friend bool operator==(const Answers&, const Answers&) = default;
};

// `engine`: which of the two, which have prompts of their own. A shared page makes later requests hit the prefix cache.
void add(Engine& engine, int32_t which, int32_t r, bool denoises) {
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 18 + 2 * r; ++i) prompt.push_back((i * 31 + (i < 16 ? 0 : r * 7) + which * 11) % 250);
  SamplingParams params{.max_tokens = 16 + 3 * r, .temperature = 0, .end_of_text = SamplingParams::EndOfText::kIgnored};
  if (r % 2 == 1) params.temperature = 0.8f, params.top_k = 20, params.seed = static_cast<uint64_t>(which + r);
  if (denoises) params.decoding.threshold = 0.04f;
  engine.add(std::move(prompt), params);
}

// Opens the device, loads the model, records graphs, answers all requests and gives everything back.
Answers answers(const Case& one, int32_t which) {
  const std::unique_ptr<DeviceRuntime> runtime = new_runtime(one.device);
  const TestDevice device = place_on(runtime.get(), one.device);
  OpContext context = device.context(Determinism::kStrict);
  context.threads = 2;
  ModelOptions options = device.model_options(context);
  options.dtype = one.dtype;
  const auto model = load_model(testing_support::golden_folder(one.family), options);
  const auto graphs = one.device == kOnCpu ? RunnerConfig::Graphs::kOff : RunnerConfig::Graphs::kRequired;
  const RunnerConfig runner =
      device.with_place({.num_pages = 40, .page_size = 16, .num_states = kRequests, .graphs = graphs}, context);
  Engine engine(*model, {.runner = runner,
                         .max_requests = kRequests,
                         .max_context_len = 128,
                         .strategy = one.strategy,
                         .decoding = {.block_size = one.block_size}});
  Answers answers;
  const auto step = [&] {
    for (const StepOutput& out : throw_if_failed(engine.step())) {
      const auto r = static_cast<size_t>(out.sequence_id - 1);
      answers.ids[r].push_back(out.token.id), answers.logprobs[r].push_back(out.token.logprob);
    }
  };
  for (int32_t r = 0; r < kRequests; ++r) {
    add(engine, which, r, one.strategy != "autoregressive");
    if (r == 2) step();  // the others come while these run
  }
  while (!engine.idle()) step();
  return answers;
}

class TwoEngines : public testing::TestWithParam<Case> {};

// Each thread opens and closes its runtime several times, so that one engine's start, captures and end fall into the
// other's steps.
TEST_P(TwoEngines, DecideWhatEachDecidesAlone) {
  constexpr int kRounds = 6;
  const Case& one = GetParam();
  if (one.device == kOnGpu && !test_device(kOnGpu)) GTEST_SKIP() << "no CUDA device";
  std::array<Answers, 2> alone;
  for (int32_t which : {0, 1}) alone[static_cast<size_t>(which)] = answers(one, which);
  EXPECT_NE(alone[0], alone[1]);
  std::latch both_are_here(2);
  const auto in_rounds = [&](int32_t which) {
    both_are_here.arrive_and_wait();
    std::vector<Answers> rounds;
    for (int round = 0; round < kRounds; ++round) rounds.push_back(answers(one, which));
    return rounds;
  };
  std::array threads = {std::async(std::launch::async, in_rounds, 0), std::async(std::launch::async, in_rounds, 1)};
  for (size_t which : {0, 1}) {
    const std::vector<Answers> rounds = threads[which].get();
    for (const Answers& beside : rounds) {
      EXPECT_EQ(beside.ids, alone[which].ids) << "engine " << which;
      EXPECT_EQ(beside.logprobs, alone[which].logprobs) << "engine " << which;
    }
  }
}

std::string name_of_case(const testing::TestParamInfo<Case>& one) {
  return one.param.family + "_" + one.param.strategy + (one.param.dtype ? "_16" : "");
}

std::vector<Case> cases_of(const std::string& device) {
  return {{device, "llama"}, {device, "qwen3_5"}, {device, "sdar", "multi_bd"}, {device, "llada", "dual_cache", 8}};
}
std::vector<Case> cases_of_gpu() {
  std::vector<Case> cases = cases_of(kOnGpu);
  cases.push_back({kOnGpu, "llama", "autoregressive", {}, DType::kBF16});
  cases.push_back({kOnGpu, "qwen3_moe"});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(FakeDevice, TwoEngines, testing::ValuesIn(cases_of(kOnFakeDevice)), name_of_case);
INSTANTIATE_TEST_SUITE_P(Cpu, TwoEngines, testing::ValuesIn(cases_of(kOnCpu)), name_of_case);
INSTANTIATE_TEST_SUITE_P(Gpu, TwoEngines, testing::ValuesIn(cases_of_gpu()), name_of_case);

}  // namespace
}  // namespace headrace
