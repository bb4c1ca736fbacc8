// Decode steps as graphs give what they give without: skipped where there is no device.
#include <gtest/gtest.h>

#include "headrace/core/device_runtime.h"
#include "headrace/engine/engine.h"
#include "headrace/models/model_registry.h"
#include "headrace/ops/cuda_module.h"
#include "support/device_mirror.h"
#include "support/safetensors_writer.h"
#include "support/source_tree.h"

namespace headrace {
namespace {

struct Case {
  std::string family, strategy = "autoregressive";
  std::optional<DType> dtype;  // in place of the checkpoint's
  std::string graphs = {};     // part of what the runner says of them
  std::string set = "cuda";    // of kernels
  std::optional<int32_t> block_size = {};
  std::optional<StrategyConfig::BlockCache> block_cache = {};
  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.set << ": " << c.family << " by " << c.strategy; }
};

constexpr int32_t kRequests = 6;

// Device 0, which has no memory for recordings: any allocation within one fails.
class ScarceRuntime final : public DeviceRuntime {
 public:
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
  DeviceRuntime& real_ = cuda_module().runtime(0);
  bool capturing_ = false;
};

class CudaGraphs : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (testing_support::mirrored_cuda_ops() == nullptr) GTEST_SKIP() << "no CUDA device";
  }
  struct Run {
    std::vector<std::vector<int32_t>> ids;
    std::string report;
    std::optional<std::string> failed_capture;
    int64_t steps = 0, graph_steps = 0;
  };
  // Ids that several requests of different lengths get, two of them drawn.
  static Run generated(const Case& one, RunnerConfig::Graphs graphs,
                       DeviceRuntime& runtime = cuda_module().runtime(0)) {
    const OpContext context{.determinism = Determinism::kStrict, .stream = runtime.stream()};
    const std::filesystem::path folder = testing_support::golden_folder(one.family);
    const auto model = load_model(
        folder, {.dtype = one.dtype, .ops = &cuda_module().ops(one.set), .context = context, .runtime = &runtime});
    RunnerConfig runner{.runtime = &runtime,
                        .context = context,
                        .num_pages = 64,
                        .page_size = 16,
                        .num_states = kRequests,
                        .graphs = graphs};
    runner.backend = one.set;
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
};

TEST_P(CudaGraphs, GiveTheTokensOfStepsWithoutThem) {
  const Run with = generated(GetParam(), RunnerConfig::Graphs::kRequired),
            without = generated(GetParam(), RunnerConfig::Graphs::kOff);
  EXPECT_NE(with.report.find(GetParam().graphs), std::string::npos) << with.report;
  EXPECT_NE(without.report.find("no graphs: switched off"), std::string::npos) << without.report;
  EXPECT_FALSE(with.failed_capture || without.failed_capture) << "neither failed";
  EXPECT_EQ(with.ids, without.ids);
  EXPECT_EQ(without.graph_steps, 0);
  EXPECT_GE(with.graph_steps, with.steps - 2);  // all but prompts that are larger than any graph
}

const std::string kBaseline = "cuda_baseline";
const std::string kDecode = "graphs for 1, 2, 4, 6 requests", kMixed = kDecode + " and for steps of 8, 16, 32, 64 rows";

INSTANTIATE_TEST_SUITE_P(Decoding, CudaGraphs,
                         testing::Values(Case{.family = "llama", .graphs = kMixed},
                                         Case{.family = "llama", .dtype = DType::kBF16, .graphs = kMixed},
                                         Case{.family = "qwen3", .graphs = kMixed},
                                         Case{.family = "qwen3_5", .graphs = kMixed},
                                         Case{.family = "qwen3_moe", .graphs = kMixed},
                                         Case{.family = "qwen3_next", .graphs = kMixed}),
                         [](const auto& one) { return one.param.family + (one.param.dtype ? "_16" : ""); });

INSTANTIATE_TEST_SUITE_P(Blocks, CudaGraphs,
                         testing::Values(Case{"sdar", "multi_bd", {}, "graphs for steps of "},
                                         Case{"sdar", "multi_bd", DType::kBF16, "graphs for steps of "},
                                         Case{"sdar_moe", "multi_bd", {}, "graphs for steps of "},
                                         Case{"llada2", "multi_bd_edit", {}, "graphs for steps of "},
                                         Case{"llada", "d2f", {}, "graphs for steps of ", "cuda", 8}),
                         [](const auto& one) {
                           return one.param.family + "_" + one.param.strategy + (one.param.dtype ? "_16" : "");
                         });

constexpr auto kNoBlockCache = StrategyConfig::BlockCache::kNo;
const std::string kParts = "graphs for steps of 8, 16, 32, 64, 96 rows";

INSTANTIATE_TEST_SUITE_P(Parts, CudaGraphs,
                         testing::Values(Case{"fast_dllm_v2", "fast_dllm_v2", {}, kParts},
                                         Case{"fast_dllm_v2", "fast_dllm_v2", DType::kBF16, kParts},
                                         Case{"fast_dllm_v2", "fast_dllm_v2", {}, kParts, "cuda", {}, kNoBlockCache}),
                         [](const auto& one) {
                           return std::string(one.param.dtype ? "bf16" : "f32") +
                                  (one.param.block_cache == kNoBlockCache ? "_no_block_cache" : "");
                         });

const std::string kCanvases = "graphs for whole canvases of up to 512 rows",
                  kBlocksAndCanvases = "rows and for whole canvases of up to 512 rows";

INSTANTIATE_TEST_SUITE_P(Canvases, CudaGraphs,
                         testing::Values(Case{"llada", "full_attention", {}, kCanvases, "cuda", 8},
                                         Case{"llada", "full_attention", DType::kBF16, kCanvases, "cuda", 8},
                                         Case{"llada_moe", "full_attention", {}, kCanvases, "cuda", 8},
                                         Case{"dream", "full_attention", {}, kCanvases, "cuda", 8},
                                         Case{"llada", "dual_cache", {}, kBlocksAndCanvases, "cuda", 8},
                                         Case{"llada_moe", "dual_cache", DType::kBF16, kBlocksAndCanvases, "cuda", 8},
                                         Case{"dream", "dual_cache", {}, kBlocksAndCanvases, "cuda", 8}),
                         [](const auto& one) {
                           return one.param.family + "_" + one.param.strategy + (one.param.dtype ? "_16" : "");
                         });

INSTANTIATE_TEST_SUITE_P(
    Baseline, CudaGraphs,
    testing::Values(Case{.family = "llama", .dtype = DType::kBF16, .graphs = kMixed, .set = kBaseline},
                    Case{.family = "qwen3_next", .graphs = kMixed, .set = kBaseline},
                    Case{.family = "qwen3_moe", .graphs = kMixed, .set = kBaseline},
                    Case{"sdar", "multi_bd", {}, "graphs for steps of ", kBaseline}),
    [](const auto& one) { return one.param.family; });

// Enough requests for graphs with fewer rows of logits, and for graphs that are close together. All blocks begin
// undecided, so the larger graphs run first.
TEST(CudaGraphsOfManyBlocks, GiveTheTokensOfStepsWithoutThem) {
  if (testing_support::mirrored_cuda_ops() == nullptr) GTEST_SKIP() << "no CUDA device";
  constexpr int32_t kMany = 120;
  DeviceRuntime& runtime = cuda_module().runtime(0);
  const OpContext context{.determinism = Determinism::kStrict, .stream = runtime.stream()};
  const auto model = load_model(testing_support::golden_folder("sdar"),
                                {.ops = &cuda_module().ops("cuda"), .context = context, .runtime = &runtime});
  const auto generated = [&](RunnerConfig::Graphs graphs) {
    RunnerConfig runner{.runtime = &runtime,
                        .context = context,
                        .num_pages = 3 * kMany,
                        .page_size = 16,
                        .max_tokens = 1024,
                        .graphs = graphs};
    runner.backend = "cuda";
    Engine engine(*model, {.runner = runner, .max_requests = kMany, .max_context_len = 48, .strategy = "multi_bd"});
    std::vector<std::vector<int32_t>> ids(kMany);
    for (int32_t r = 0; r < kMany; ++r) {
      SamplingParams params{
          .max_tokens = 8 + r % 8, .temperature = 0, .end_of_text = SamplingParams::EndOfText::kIgnored};
      params.decoding.threshold = 0.04f;
      if (r % 3 == 0) params.temperature = 0.5f + 0.01f * static_cast<float>(r), params.seed = static_cast<uint64_t>(r);
      if (r % 6 == 0) params.top_k = 4 + r;
      engine.add({r % 250, 7 * r % 250, 3}, params);
    }
    while (!engine.idle()) {
      for (const StepOutput& out : engine.step()) ids[static_cast<size_t>(out.sequence_id - 1)].push_back(out.token.id);
    }
    EXPECT_EQ(engine.runner().num_graph_steps() > 0, graphs == RunnerConfig::Graphs::kRequired);
    return ids;
  };
  EXPECT_EQ(generated(RunnerConfig::Graphs::kRequired), generated(RunnerConfig::Graphs::kOff));
}

// Contexts that grow out of the graphs for short ones, alone and beside others, in fast mode: strict mode has one kind.
class CudaGraphsOfShortContexts : public testing::TestWithParam<std::string> {};

TEST_P(CudaGraphsOfShortContexts, GiveTheTokensOfStepsWithoutThem) {
  if (testing_support::mirrored_cuda_ops() == nullptr) GTEST_SKIP() << "no CUDA device";
  DeviceRuntime& runtime = cuda_module().runtime(0);
  const OpContext context{.stream = runtime.stream()};
  const bool blocks = GetParam() == "sdar";
  const auto model = load_model(testing_support::golden_folder(GetParam()),
                                {.ops = &cuda_module().ops("cuda"), .context = context, .runtime = &runtime});
  const auto generated = [&](RunnerConfig::Graphs graphs, std::string& report) {
    RunnerConfig runner{.runtime = &runtime,
                        .context = context,
                        .num_pages = 450,
                        .page_size = 16,
                        .num_states = 3,
                        .max_tokens = 2048,
                        .graphs = graphs};
    runner.backend = "cuda";
    Engine engine(*model, {.runner = runner,
                           .max_requests = 3,
                           .max_context_len = 2200,
                           .strategy = blocks ? "multi_bd" : "autoregressive"});
    report = engine.runner().describe();
    std::vector<std::vector<int32_t>> ids(3);
    for (int32_t r = 0; r < 3; ++r) {
      std::vector<int32_t> prompt;
      for (int32_t i = 0; i < (r == 1 ? 2034 : 9 + r); ++i) prompt.push_back((i * 31 + r * 7) % 250);
      SamplingParams params{
          .max_tokens = 24 + 8 * r, .temperature = 0, .end_of_text = SamplingParams::EndOfText::kIgnored};
      if (blocks) params.decoding.threshold = 0.04f;
      engine.add(prompt, params);
    }
    while (!engine.idle()) {
      for (const StepOutput& out : engine.step()) ids[static_cast<size_t>(out.sequence_id - 1)].push_back(out.token.id);
    }
    return ids;
  };
  std::string with, without;
  EXPECT_EQ(generated(RunnerConfig::Graphs::kRequired, with), generated(RunnerConfig::Graphs::kOff, without));
  EXPECT_NE(with.find(blocks ? "; with up to 2048 keys for steps of " : "; with up to 2048 keys for 1, 2, 3 requests"),
            std::string::npos)
      << with;
}

INSTANTIATE_TEST_SUITE_P(Families, CudaGraphsOfShortContexts, testing::Values("llama", "qwen3_5", "sdar"),
                         [](const auto& family) { return family.param; });

// Heads of 128 and requests enough for attention by warps that share keys, over 32 pages at most: one of them grows out
// of its graphs.
TEST(CudaGraphsOfManyShortRequests, GiveTheTokensOfStepsWithoutThem) {
  if (testing_support::mirrored_cuda_ops() == nullptr) GTEST_SKIP() << "no CUDA device";
  constexpr int32_t kMany = 40, kLong = 626;
  DeviceRuntime& runtime = cuda_module().runtime(0);
  const OpContext context{.determinism = Determinism::kStrict, .stream = runtime.stream()};
  const test::TempDir folder;
  test::write_file(folder / "config.json", R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 256, "hidden_size": 256,
    "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 16, "num_key_value_heads": 8,
    "head_dim": 128, "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "hidden_act": "silu", "tie_word_embeddings": false, "dtype": "bfloat16"})");
  const auto model = load_model(
      folder.path(), {.ops = &cuda_module().ops("cuda"), .context = context, .runtime = &runtime, .random_weights = 1});
  const auto generated = [&](RunnerConfig::Graphs graphs, std::string& report) {
    RunnerConfig runner{.runtime = &runtime,
                        .context = context,
                        .num_pages = 400,
                        .page_size = 16,
                        .max_tokens = 1024,
                        .graphs = graphs};
    runner.backend = "cuda";
    Engine engine(*model, {.runner = runner, .max_requests = kMany, .max_context_len = 800});
    report = engine.runner().describe();
    std::vector<std::vector<int32_t>> ids(kMany);
    for (int32_t r = 0; r < kMany; ++r) {
      std::vector<int32_t> prompt;
      for (int32_t i = 0; i < (r == 17 ? kLong : 3 + r); ++i) prompt.push_back((i * 31 + r * 7) % 250);
      engine.add(prompt, {.max_tokens = 40, .temperature = 0, .end_of_text = SamplingParams::EndOfText::kIgnored});
    }
    while (!engine.idle()) {
      for (const StepOutput& out : engine.step()) ids[static_cast<size_t>(out.sequence_id - 1)].push_back(out.token.id);
    }
    return ids;
  };
  std::string with, without;
  EXPECT_EQ(generated(RunnerConfig::Graphs::kRequired, with), generated(RunnerConfig::Graphs::kOff, without));
  EXPECT_NE(with.find("; with up to 512 keys for 12, 16, 24, 32, 40 requests"), std::string::npos) << with;
}

class CudaGraphMemory : public CudaGraphs {};

TEST_P(CudaGraphMemory, ARecordingThatFindsNoneLeavesStepsWithoutGraphsAndSaysWhatToTry) {
  ScarceRuntime scarce;
  const Run without = generated(GetParam(), RunnerConfig::Graphs::kPreferred, scarce);
  EXPECT_NE(without.report.find("no graphs: recording steps of up to "), std::string::npos) << without.report;
  EXPECT_NE(without.report.find(" rows: cuda:0: could not allocate "), std::string::npos) << without.report;
  EXPECT_NE(without.report.find("bytes; 7 of 9 are free; try a smaller max_model_len, or no graphs (--no-graphs)"),
            std::string::npos)
      << without.report;
  EXPECT_TRUE(without.failed_capture.value_or("none").starts_with("recording steps of up to "));
  EXPECT_EQ(without.graph_steps, 0);
  EXPECT_EQ(without.ids, generated(GetParam(), RunnerConfig::Graphs::kOff).ids);
}

TEST_P(CudaGraphMemory, ARecordingThatIsRequiredAndFindsNoneIsAnErrorOfMemory) {
  ScarceRuntime scarce;
  try {
    generated(GetParam(), RunnerConfig::Graphs::kRequired, scarce);
    FAIL() << "graphs in memory that is not there";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kOutOfMemory);
    EXPECT_EQ(std::string(e.what()).find("graphs of all steps behind prompts are required, but there are none: "
                                         "recording steps of up to "),
              0u)
        << e.what();
  }
}

INSTANTIATE_TEST_SUITE_P(OneFamily, CudaGraphMemory, testing::Values(Case{.family = "qwen3"}),
                         [](const auto& one) { return one.param.family; });

}  // namespace
}  // namespace headrace
