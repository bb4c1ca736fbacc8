// Decode steps as graphs give what they give without, on the fake device also what a CPU gives. Cases of a GPU are
// skipped where there is none.
#include <gtest/gtest.h>

#include "engine/test_device.h"
#include "headrace/core/device_runtime.h"
#include "headrace/engine/engine.h"
#include "headrace/models/model_registry.h"
#include "support/safetensors_writer.h"
#include "support/source_tree.h"

namespace headrace {
namespace {

using testing_support::kOnCpu, testing_support::kOnFakeDevice, testing_support::kOnGpu, testing_support::kOnGpuBaseline;
using testing_support::test_device, testing_support::TestDevice;

struct Case {
  std::string family, strategy = "autoregressive";
  std::optional<DType> dtype;  // in place of the checkpoint's
  std::string graphs = {};     // part of what the runner says of them
  std::string device = kOnGpu;
  std::optional<int32_t> block_size = {};
  std::optional<StrategyConfig::BlockCache> block_cache = {};
  friend void PrintTo(const Case& c, std::ostream* out) {
    *out << c.device << ": " << c.family << " by " << c.strategy;
  }
};

constexpr int32_t kRequests = 6;

// A device that has no memory for recordings: any allocation within one fails.
class ScarceRuntime final : public DeviceRuntime {
 public:
  explicit ScarceRuntime(DeviceRuntime& real) : real_(real) {}
  Device device() const override { return real_.device(); }
  void* allocate(size_t bytes) override {
    HR_REQUIRE(!capturing_, ErrorCode::kOutOfMemory, "cuda:0: could not allocate ", bytes, " bytes; 7 of 9 are free");
    return real_.allocate(bytes);
  }
  void release(void* memory, size_t bytes) noexcept override { real_.release(memory, bytes); }
  void fill_zero(void* memory, size_t bytes) override { real_.fill_zero(memory, bytes); }
  void copy_to_device(void* to, const void* from, size_t bytes) override { real_.copy_to_device(to, from, bytes); }
  void copy_to_host(void* to, const void* from, size_t bytes) override { real_.copy_to_host(to, from, bytes); }
  void copy_on_device(void* to, const void* from, size_t bytes) override { real_.copy_on_device(to, from, bytes); }
  void synchronize() override { real_.synchronize(); }
  std::unique_ptr<DeviceEvent> make_event() override { return real_.make_event(); }
  void* allocate_shared(size_t bytes) override { return real_.allocate_shared(bytes); }
  void release_shared(void* memory, size_t bytes) noexcept override { real_.release_shared(memory, bytes); }
  void* stream() override { return real_.stream(); }
  void begin_capture() override { real_.begin_capture(), capturing_ = true; }
  std::unique_ptr<DeviceGraph> end_capture() override {
    capturing_ = false;
    return real_.end_capture();
  }

 private:
  DeviceRuntime& real_;
  bool capturing_ = false;
};

class CudaGraphs : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    device_ = test_device(GetParam().device);
    if (!device_) GTEST_SKIP() << "no CUDA device";
  }
  struct Run {
    std::vector<std::vector<int32_t>> ids;
    std::string report;
    std::optional<std::string> failed_capture;
    int64_t steps = 0, graph_steps = 0;
  };
  // Ids that several requests of different lengths get, two of them drawn.
  static Run generated(const Case& one, const TestDevice& device, RunnerConfig::Graphs graphs) {
    const OpContext context = device.context(Determinism::kStrict);
    ModelOptions options = device.model_options(context);
    options.dtype = one.dtype;
    const auto model = load_model(testing_support::golden_folder(one.family), options);
    const RunnerConfig runner =
        device.with_place({.num_pages = 64, .page_size = 16, .num_states = kRequests, .graphs = graphs}, context);
    Engine engine(*model, {.runner = runner,
                           .max_requests = kRequests,
                           .max_context_len = 128,
                           .strategy = one.strategy,
                           .decoding = {.block_size = one.block_size, .block_cache = one.block_cache}});
    Run run{.ids = std::vector<std::vector<int32_t>>(kRequests),
            .report = engine.runner().describe(),
            .failed_capture = engine.runner().failed_capture()};
    for (int32_t r = 0; r < 4; ++r) add(engine, r);
    for (int step = 0; !engine.idle(); ++step) {
      if (step == 3) add(engine, 4), add(engine, 5);  // while others run
      if (step == 5) engine.abort(2);
      for (const StepOutput& out : engine.step()) {
        run.ids[static_cast<size_t>(out.sequence_id - 1)].push_back(out.token.id);
      }
    }
    run.ids[1].clear();  // how far it came depends on the steps
    run.steps = engine.counters().steps;
    run.graph_steps = engine.runner().num_graph_steps();
    return run;
  }
  static void add(Engine& engine, int32_t r) {
    std::vector<int32_t> prompt;
    for (int32_t i = 0; i < 3 + 2 * r; ++i) prompt.push_back((i * 31 + r * 7) % 250);
    SamplingParams params{
        .max_tokens = 20 + 3 * r, .temperature = 0, .end_of_text = SamplingParams::EndOfText::kIgnored};
    if (r == 3) params.temperature = 0.8f, params.seed = 5;
    if (r == 5) params.temperature = 1, params.top_k = 9, params.top_p = 0.9f, params.seed = 6;
    if (r == 4 && engine.config().strategy == "autoregressive") params.repetition_penalty = 1.3f;
    if (engine.config().strategy != "autoregressive") {
      params.decoding.threshold = 0.04f;  // of random weights: some passes decide one token, some several
    }
    engine.add(prompt, params);
  }

  std::optional<TestDevice> device_;
};

TEST_P(CudaGraphs, GiveTheTokensOfStepsWithoutThem) {
  const Run with = generated(GetParam(), *device_, RunnerConfig::Graphs::kRequired),
            without = generated(GetParam(), *device_, RunnerConfig::Graphs::kOff);
  EXPECT_NE(with.report.find(GetParam().graphs), std::string::npos) << with.report;
  EXPECT_NE(without.report.find("no graphs: switched off"), std::string::npos) << without.report;
  EXPECT_FALSE(with.failed_capture || without.failed_capture) << "neither failed";
  EXPECT_EQ(with.ids, without.ids);
  EXPECT_EQ(without.graph_steps, 0);
  EXPECT_GE(with.graph_steps, with.steps - 2);     // all but prompts that are larger than any graph
  if (GetParam().device != kOnFakeDevice) return;  // whose kernels are the CPU's
  EXPECT_EQ(with.ids, generated(GetParam(), *test_device(kOnCpu), RunnerConfig::Graphs::kOff).ids);
}

const std::string kDecode = "graphs for 1, 2, 4, 6 requests", kMixed = kDecode + " and for steps of 8, 16, 32, 64 rows",
                  kBlocks = "graphs for steps of ", kParts = "graphs for steps of 8, 16, 32, 64, 96 rows",
                  kCanvases = "graphs for whole canvases of up to 512 rows",
                  kBlocksAndCanvases = "rows and for whole canvases of up to 512 rows";
constexpr auto kNoBlockCache = StrategyConfig::BlockCache::kNo;

std::vector<Case> cases_of(const std::string& device) {
  return {{"llama", "autoregressive", {}, kMixed, device},
          {"llama", "autoregressive", DType::kBF16, kMixed, device},
          {"qwen3", "autoregressive", {}, kMixed, device},
          {"qwen3_5", "autoregressive", {}, kMixed, device},
          {"qwen3_moe", "autoregressive", {}, kMixed, device},
          {"qwen3_next", "autoregressive", {}, kMixed, device},
          {"sdar", "multi_bd", {}, kBlocks, device},
          {"sdar", "multi_bd", DType::kBF16, kBlocks, device},
          {"sdar_moe", "multi_bd", {}, kBlocks, device},
          {"llada2", "multi_bd_edit", {}, kBlocks, device},
          {"llada", "d2f", {}, kBlocks, device, 8},
          {"fast_dllm_v2", "fast_dllm_v2", {}, kParts, device},
          {"fast_dllm_v2", "fast_dllm_v2", DType::kBF16, kParts, device},
          {"fast_dllm_v2", "fast_dllm_v2", {}, kParts, device, {}, kNoBlockCache},
          {"llada", "full_attention", {}, kCanvases, device, 8},
          {"llada", "full_attention", DType::kBF16, kCanvases, device, 8},
          {"llada_moe", "full_attention", {}, kCanvases, device, 8},
          {"dream", "full_attention", {}, kCanvases, device, 8},
          {"llada", "dual_cache", {}, kBlocksAndCanvases, device, 8},
          {"llada_moe", "dual_cache", DType::kBF16, kBlocksAndCanvases, device, 8},
          {"dream", "dual_cache", {}, kBlocksAndCanvases, device, 8}};
}

std::vector<Case> cases_of_fake_device() {
  std::vector<Case> cases = cases_of(kOnFakeDevice);
  std::erase_if(cases, [](const Case& one) {
    return testing_support::has_experts(one.family);  // whose ops the CPU does not have
  });
  return cases;
}

std::string name_of_case(const testing::TestParamInfo<Case>& one) {
  return one.param.family + "_" + one.param.strategy + (one.param.dtype ? "_16" : "") +
         (one.param.block_cache == kNoBlockCache ? "_no_block_cache" : "");
}

INSTANTIATE_TEST_SUITE_P(Gpu, CudaGraphs, testing::ValuesIn(cases_of(kOnGpu)), name_of_case);
INSTANTIATE_TEST_SUITE_P(FakeDevice, CudaGraphs, testing::ValuesIn(cases_of_fake_device()), name_of_case);
INSTANTIATE_TEST_SUITE_P(
    Baseline, CudaGraphs,
    testing::Values(Case{.family = "llama", .dtype = DType::kBF16, .graphs = kMixed, .device = kOnGpuBaseline},
                    Case{.family = "qwen3_next", .graphs = kMixed, .device = kOnGpuBaseline},
                    Case{.family = "qwen3_moe", .graphs = kMixed, .device = kOnGpuBaseline},
                    Case{"sdar", "multi_bd", {}, kBlocks, kOnGpuBaseline}),
    name_of_case);

std::vector<std::vector<int32_t>> ids_of_all(Engine& engine, int32_t requests) {
  std::vector<std::vector<int32_t>> ids(static_cast<size_t>(requests));
  while (!engine.idle()) {
    for (const StepOutput& out : engine.step()) ids[static_cast<size_t>(out.sequence_id - 1)].push_back(out.token.id);
  }
  return ids;
}

// Enough requests for graphs with fewer rows of logits, and for graphs that are close together. All blocks begin
// undecided, so the larger graphs run first.
class CudaGraphsOfManyBlocks : public testing::TestWithParam<std::string> {};

TEST_P(CudaGraphsOfManyBlocks, GiveTheTokensOfStepsWithoutThem) {
  const std::optional<TestDevice> device = test_device(GetParam());
  if (!device) GTEST_SKIP() << "no CUDA device";
  constexpr int32_t kMany = 120;
  const OpContext context = device->context(Determinism::kStrict);
  const auto model = load_model(testing_support::golden_folder("sdar"), device->model_options(context));
  const auto generated = [&](RunnerConfig::Graphs graphs) {
    const RunnerConfig runner =
        device->with_place({.num_pages = 3 * kMany, .page_size = 16, .max_tokens = 1024, .graphs = graphs}, context);
    Engine engine(*model, {.runner = runner, .max_requests = kMany, .max_context_len = 48, .strategy = "multi_bd"});
    for (int32_t r = 0; r < kMany; ++r) {
      SamplingParams params{
          .max_tokens = 8 + r % 8, .temperature = 0, .end_of_text = SamplingParams::EndOfText::kIgnored};
      params.decoding.threshold = 0.04f;
      if (r % 3 == 0) params.temperature = 0.5f + 0.01f * static_cast<float>(r), params.seed = static_cast<uint64_t>(r);
      if (r % 6 == 0) params.top_k = 4 + r;
      engine.add({r % 250, 7 * r % 250, 3}, params);
    }
    std::vector<std::vector<int32_t>> ids = ids_of_all(engine, kMany);
    EXPECT_EQ(engine.runner().num_graph_steps() > 0, graphs == RunnerConfig::Graphs::kRequired);
    return ids;
  };
  EXPECT_EQ(generated(RunnerConfig::Graphs::kRequired), generated(RunnerConfig::Graphs::kOff));
}

INSTANTIATE_TEST_SUITE_P(Devices, CudaGraphsOfManyBlocks, testing::Values(kOnFakeDevice, kOnGpu),
                         [](const auto& device) { return device.param; });

// Contexts that grow out of the graphs for short ones, alone and beside others, in fast mode: strict mode has one kind.
class CudaGraphsOfShortContexts : public testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(CudaGraphsOfShortContexts, GiveTheTokensOfStepsWithoutThem) {
  const auto& [family, device_name] = GetParam();
  const std::optional<TestDevice> device = test_device(device_name);
  if (!device) GTEST_SKIP() << "no CUDA device";
  const OpContext context = device->context();
  const bool blocks = family == "sdar";
  const auto model = load_model(testing_support::golden_folder(family), device->model_options(context));
  const auto generated = [&](RunnerConfig::Graphs graphs, std::string& report) {
    const RunnerConfig runner = device->with_place(
        {.num_pages = 450, .page_size = 16, .num_states = 3, .max_tokens = 2048, .graphs = graphs}, context);
    Engine engine(*model, {.runner = runner,
                           .max_requests = 3,
                           .max_context_len = 2200,
                           .strategy = blocks ? "multi_bd" : "autoregressive"});
    report = engine.runner().describe();
    for (int32_t r = 0; r < 3; ++r) {
      std::vector<int32_t> prompt;
      for (int32_t i = 0; i < (r == 1 ? 2034 : 9 + r); ++i) prompt.push_back((i * 31 + r * 7) % 250);
      SamplingParams params{
          .max_tokens = 24 + 8 * r, .temperature = 0, .end_of_text = SamplingParams::EndOfText::kIgnored};
      if (blocks) params.decoding.threshold = 0.04f;
      engine.add(prompt, params);
    }
    return ids_of_all(engine, 3);
  };
  std::string with, without;
  EXPECT_EQ(generated(RunnerConfig::Graphs::kRequired, with), generated(RunnerConfig::Graphs::kOff, without));
  EXPECT_NE(with.find(blocks ? "; with up to 2048 keys for steps of " : "; with up to 2048 keys for 1, 2, 3 requests"),
            std::string::npos)
      << with;
}

INSTANTIATE_TEST_SUITE_P(Families, CudaGraphsOfShortContexts,
                         testing::Combine(testing::Values("llama", "qwen3_5", "sdar"),
                                          testing::Values(kOnFakeDevice, kOnGpu)),
                         [](const auto& one) { return std::get<0>(one.param) + "_" + std::get<1>(one.param); });

// Heads of 128 and requests enough for attention by warps that share keys, over 32 pages at most: one of them grows out
// of its graphs.
TEST(CudaGraphsOfManyShortRequests, GiveTheTokensOfStepsWithoutThem) {
  const std::optional<TestDevice> device = test_device(kOnGpu);
  if (!device) GTEST_SKIP() << "no CUDA device";
  constexpr int32_t kMany = 40, kLong = 626;
  const OpContext context = device->context(Determinism::kStrict);
  const test::TempDir folder;
  test::write_file(folder / "config.json", R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 256, "hidden_size": 256,
    "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 16, "num_key_value_heads": 8,
    "head_dim": 128, "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "hidden_act": "silu", "tie_word_embeddings": false, "dtype": "bfloat16"})");
  ModelOptions options = device->model_options(context);
  options.random_weights = 1;
  const auto model = load_model(folder.path(), options);
  const auto generated = [&](RunnerConfig::Graphs graphs, std::string& report) {
    const RunnerConfig runner =
        device->with_place({.num_pages = 400, .page_size = 16, .max_tokens = 1024, .graphs = graphs}, context);
    Engine engine(*model, {.runner = runner, .max_requests = kMany, .max_context_len = 800});
    report = engine.runner().describe();
    for (int32_t r = 0; r < kMany; ++r) {
      std::vector<int32_t> prompt;
      for (int32_t i = 0; i < (r == 17 ? kLong : 3 + r); ++i) prompt.push_back((i * 31 + r * 7) % 250);
      engine.add(prompt, {.max_tokens = 40, .temperature = 0, .end_of_text = SamplingParams::EndOfText::kIgnored});
    }
    return ids_of_all(engine, kMany);
  };
  std::string with, without;
  EXPECT_EQ(generated(RunnerConfig::Graphs::kRequired, with), generated(RunnerConfig::Graphs::kOff, without));
  EXPECT_NE(with.find("; with up to 512 keys for 12, 16, 24, 32, 40 requests"), std::string::npos) << with;
}

class CudaGraphMemory : public CudaGraphs {
 protected:
  TestDevice on(ScarceRuntime& scarce) const {
    TestDevice device = *device_;
    device.runtime = &scarce;
    return device;
  }
};

TEST_P(CudaGraphMemory, ARecordingThatFindsNoneLeavesStepsWithoutGraphsAndSaysWhatToTry) {
  ScarceRuntime scarce(*device_->runtime);
  const Run without = generated(GetParam(), on(scarce), RunnerConfig::Graphs::kPreferred);
  EXPECT_NE(without.report.find("no graphs: recording steps of up to "), std::string::npos) << without.report;
  EXPECT_NE(without.report.find(" rows: cuda:0: could not allocate "), std::string::npos) << without.report;
  EXPECT_NE(without.report.find("bytes; 7 of 9 are free; try a smaller max_model_len, or no graphs (--no-graphs)"),
            std::string::npos)
      << without.report;
  EXPECT_TRUE(without.failed_capture.value_or("none").starts_with("recording steps of up to "));
  EXPECT_EQ(without.graph_steps, 0);
  EXPECT_EQ(without.ids, generated(GetParam(), *device_, RunnerConfig::Graphs::kOff).ids);
}

TEST_P(CudaGraphMemory, ARecordingThatIsRequiredAndFindsNoneIsAnErrorOfMemory) {
  ScarceRuntime scarce(*device_->runtime);
  try {
    generated(GetParam(), on(scarce), RunnerConfig::Graphs::kRequired);
    FAIL() << "graphs in memory that is not there";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kOutOfMemory);
    EXPECT_EQ(std::string(e.what()).find("graphs of all steps behind prompts are required, but there are none: "
                                         "recording steps of up to "),
              0u)
        << e.what();
  }
}

INSTANTIATE_TEST_SUITE_P(OneFamily, CudaGraphMemory,
                         testing::Values(Case{.family = "qwen3"}, Case{.family = "qwen3", .device = kOnFakeDevice}),
                         [](const auto& one) { return one.param.family + "_" + one.param.device; });

}  // namespace
}  // namespace headrace
