// Strictness for whole models: a request's logits have the same bits whatever else is in the batch, wherever it stands
// there, and however its prompt is cut.
#include <gtest/gtest.h>

#include <map>

#include "engine/golden_batches.h"
#include "engine/with_end_tokens.h"
#include "headrace/core/device_runtime.h"
#include "headrace/engine/engine.h"
#include "headrace/ops/cpu/dispatch.h"
#include "headrace/ops/cuda_module.h"
#include "support/all_close.h"
#include "support/device_mirror.h"
#include "support/gpu.h"
#include "support/random.h"

namespace headrace::testing_support {
namespace {

using Share = GoldenBatches::Share;
constexpr int32_t kLength = 77;

class BatchComposition : public testing::TestWithParam<std::string> {};

// The sequence under test is the same in each; where it stands, what stands beside it and the cuts differ.
using Schedule = std::vector<std::vector<Share>>;

// Sequence 0 is the one; 1, 2 and 3 are company.
const std::vector<Schedule> kSchedules = {
    // A prompt before it, one behind it, then a decoding one between.
    {{{1, 40}, {0, kLength}, {2, 5}}},
    // Odd chunks at changing places, company in prefill and in decode.
    {{{1, 13}, {0, 7}},
     {{0, 13}, {1, 1}, {2, 30}},
     {{1, 1}, {2, 1}, {0, 1}},
     {{2, 1}, {0, 29}, {3, 64}},
     {{0, kLength}}},
    // Prefill, then token by token beside three decoding ones and a prompt that is cut.
    {{{0, 60}, {1, 3}, {2, 1}},
     {{1, 1}, {2, 1}, {0, 1}, {3, 1}},
     {{3, 33}, {0, 1}},
     {{0, 1}, {1, 1}},
     {{2, 17}, {0, kLength}}},
};

OpContext strict_on(DeviceRuntime* device) {
  return {.threads = 2, .determinism = Determinism::kStrict, .stream = device != nullptr ? device->stream() : nullptr};
}

// `make` returns GoldenBatches of nothing yet.
template <class Make>
void expect_bits_of_the_one_in_every_schedule(const Make& make) {
  GoldenBatches alone = make();
  alone.add(7, kLength);
  alone.step({{0, kLength}});
  for (size_t i = 0; i < kSchedules.size(); ++i) {
    SCOPED_TRACE(str("schedule ", i));
    GoldenBatches together = make();
    for (const uint64_t seed : {7, 100, 101, 102}) together.add(seed, kLength);
    for (const std::vector<Share>& step : kSchedules[i]) together.step(step);
    ASSERT_EQ(together.left(0), 0);
    EXPECT_TRUE(bit_equal(together.logits(0), alone.logits(0)));
  }
}

TEST_P(BatchComposition, StrictLogitsDoNotDependOnWhatElseRunsOrOnTheCut) {
  for (const cpu::KernelSet& set : cpu::kernel_sets()) {
    if (!set.runs_here()) continue;
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(str(set.ops->name, " ", name_of(dtype)));
      expect_bits_of_the_one_in_every_schedule(
          [&] { return GoldenBatches(golden_folder(GetParam()), *set.ops, dtype, strict_on(nullptr)); });
    }
  }
}

// Steps of which some are replays of graphs, and others are not.
TEST_P(BatchComposition, StrictLogitsDoNotDependOnWhatElseRunsOrOnTheCutOnADevice) {
  if (mirrored_cuda_ops() == nullptr) GTEST_SKIP() << "no CUDA device";
  DeviceRuntime& device = testing_support::gpu();
  for (const std::string_view set : kCudaSets) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(str(set, " ", name_of(dtype)));
      const ModelOptions options{
          .dtype = dtype, .ops = &cuda_module().ops(set), .context = strict_on(&device), .runtime = &device};
      const RunnerConfig runner{.backend = std::string(set), .runtime = &device, .context = options.context};
      expect_bits_of_the_one_in_every_schedule([&] {
        return GoldenBatches(load_model(golden_folder(GetParam()), options), runner, GoldenBatches::kMaxSequences);
      });
    }
  }
}

using Prompts = std::vector<std::vector<int32_t>>;
using Answers = std::map<int64_t, std::vector<SampledToken>>;

// All at once, four tokens each; `rows` that ran. On `device`, null for the CPU.
Answers answers(const Model& model, DeviceRuntime* device, SchedulerConfig::KeepText keep, const Prompts& prompts,
                int64_t& rows) {
  RunnerConfig runner{
      .context = strict_on(device), .num_pages = 64, .page_size = 16, .num_states = 8, .max_tokens = 100};
  if (device != nullptr) runner.runtime = device;
  Engine engine(model, {.runner = runner, .max_requests = 4, .max_context_len = 128, .keep_text = keep});
  Answers all;
  for (const std::vector<int32_t>& prompt : prompts) engine.add(prompt, {.max_tokens = 4, .temperature = 0});
  while (!engine.idle()) {
    for (const StepOutput& out : engine.step()) all[out.sequence_id].push_back(out.token);
  }
  rows = engine.counters().rows;
  EXPECT_EQ(engine.scheduler().free_pages(), 64);
  return all;
}

// Three prompts that share 77, 77 and 40 tokens, and one that shares none: nobody's tokens or probabilities change by a
// bit, whether keys and values alone are shared or recurrent states too, and what is shared runs once.
void expect_common_beginnings_to_run_once(const Model& model, DeviceRuntime* device) {
  Prompts prompts(4, std::vector<int32_t>(kLength));
  Random random(3);
  for (int32_t& id : prompts[0]) id = static_cast<int32_t>(random.below(200));
  for (int32_t& id : prompts[3]) id = static_cast<int32_t>(random.below(200));
  prompts[1] = prompts[2] = prompts[0];
  for (size_t p = 40; p < kLength; ++p) prompts[2][p] = prompts[3][p];
  int64_t shared_rows = 0, own_rows = 0;
  Answers shared = answers(model, device, SchedulerConfig::KeepText::kYes, prompts, shared_rows);
  Answers own = answers(model, device, SchedulerConfig::KeepText::kNo, prompts, own_rows);
  EXPECT_EQ(own_rows - shared_rows, 64 + 32);  // whole pages of 16
  for (const auto& [id, want] : own) {
    const std::vector<SampledToken>& got = shared[id];
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(got[i].id, want[i].id) << "request " << id << ", token " << i;
      EXPECT_EQ(got[i].logprob, want[i].logprob) << "request " << id << ", token " << i;
    }
  }
}

TEST_P(BatchComposition, RequestsThatBeginAlikeComputeItOnceAndChangeNoBit) {
  const auto model = load_model(golden_folder(GetParam()), {.dtype = DType::kF32, .context = strict_on(nullptr)});
  expect_common_beginnings_to_run_once(*model, nullptr);
}

TEST_P(BatchComposition, RequestsThatBeginAlikeComputeItOnceOnADevice) {
  if (mirrored_cuda_ops() == nullptr) GTEST_SKIP() << "no CUDA device";
  DeviceRuntime& device = testing_support::gpu();
  const auto model = load_model(
      golden_folder(GetParam()),
      {.dtype = DType::kF32, .ops = &cuda_module().ops("cuda"), .context = strict_on(&device), .runtime = &device});
  expect_common_beginnings_to_run_once(*model, &device);
}

// A penalty needs logits on the host; the request beside it goes on being read by the device.
TEST_P(BatchComposition, ARequestBesideOneThatTheHostReadsHasItsOwnProbabilitiesOnADevice) {
  if (mirrored_cuda_ops() == nullptr) GTEST_SKIP() << "no CUDA device";
  DeviceRuntime& device = testing_support::gpu();
  const auto model = load_model(
      golden_folder(GetParam()),
      {.dtype = DType::kF32, .ops = &cuda_module().ops("cuda"), .context = strict_on(&device), .runtime = &device});
  RunnerConfig runner{.runtime = &device, .context = strict_on(&device), .num_pages = 64, .page_size = 16};
  runner.num_states = 4;
  const WithEndTokens with_ends(*model, {3});
  std::vector<std::vector<SampledToken>> got;
  for (const bool beside : {false, true}) {
    Engine engine(with_ends, {.runner = runner, .max_requests = 4, .max_context_len = 128});
    const auto ignored = SamplingParams::EndOfText::kIgnored;
    const int64_t id = engine.add({7, 11, 13}, {.max_tokens = 30, .temperature = 0, .end_of_text = ignored});
    if (beside)
      engine.add({5, 6}, {.max_tokens = 30, .temperature = 0, .end_of_text = SamplingParams::EndOfText::kBanned});
    std::vector<SampledToken>& tokens = got.emplace_back();
    while (!engine.idle()) {
      for (const StepOutput& out : engine.step()) {
        if (out.sequence_id == id) tokens.push_back(out.token);
      }
    }
  }
  ASSERT_EQ(got[1].size(), got[0].size());
  for (size_t i = 0; i < got[0].size(); ++i) {
    EXPECT_EQ(got[1][i].id, got[0][i].id) << "token " << i;
    EXPECT_EQ(got[1][i].logprob, got[0][i].logprob) << "token " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, BatchComposition, testing::ValuesIn(golden_families()),
                         [](const auto& family) { return family.param; });

}  // namespace
}  // namespace headrace::testing_support
