// Models of random weights that are as wide as those that people run. On a device their products go to kernels for
// which the golden models are too narrow: small-M GEMMs of 1 to 64 rows, GEMM sequences of 1 to 4, SwiGLU GEMMs of many
// rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ostream>

#include "engine/golden_batches.h"
#include "engine/golden_device.h"
#include "headrace/ops/cuda/gemm/sm90/gemm_sequence_plan.h"
#include "headrace/ops/cuda/gemm/sm90/small_m_gemm_plan.h"
#include "headrace/ops/cuda/gemm/sm90/swiglu_gemm_plan.h"
#include "support/all_close.h"
#include "support/gpu.h"
#include "support/random.h"
#include "support/safetensors_writer.h"
#include "support/tolerances.h"

namespace headrace::testing_support {
namespace {

using Graphs = RunnerConfig::Graphs;

constexpr int32_t kPrompt = 3;  // tokens of every prompt; all prompts run in one step

struct Wide {
  std::string name, config;       // the file's, but for what all have
  std::vector<int32_t> decoding;  // sequences of each step behind the prompts: always the first ones
  friend void PrintTo(const Wide& model, std::ostream* out) { *out << model.name; }
};

const std::string kAttention = R"("architectures": ["Qwen3ForCausalLM"], "rope_theta": 1e6, )";
const std::string kHybrid =
    R"("architectures": ["Qwen3_5ForCausalLM"], "rope_parameters": {"rope_theta": 1e7}, "head_dim": 256,
       "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 16, )";
// Biases, and sizes that end within the tiles of kernels.
const std::string kUneven = R"("architectures": ["Qwen2ForCausalLM"], "rope_theta": 1e6, "head_dim": 64, )";
const std::string kSmallM = R"("hidden_size": 1024, "vocab_size": 2560, )";
const std::string kChained = R"("hidden_size": 2048, "intermediate_size": 5120, "vocab_size": 1024, )";

std::vector<Wide> wide_models() {
  const std::vector<int32_t> many = {64, 33, 17, 16, 9, 8, 4, 2, 1}, few = {8, 7, 6, 5, 4, 3, 2, 1};
  return {
      {"attention",
       kAttention + kSmallM +
           R"("intermediate_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128)",
       many},
      {"hybrid", kHybrid + kSmallM + R"("intermediate_size": 3584, "num_attention_heads": 8, "num_key_value_heads": 2,
                                  "linear_num_value_heads": 16)",
       many},
      {"attention_in_chains",
       kAttention + kChained + R"("num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128)", few},
      {"hybrid_in_chains",
       kHybrid + kChained + R"("num_attention_heads": 20, "num_key_value_heads": 4, "linear_num_value_heads": 48)",
       few},
      {"uneven", kUneven + R"("hidden_size": 1048, "intermediate_size": 2824, "vocab_size": 2563,
                        "num_attention_heads": 18, "num_key_value_heads": 2)",
       many},
      {"uneven_in_chains", kUneven + R"("hidden_size": 2056, "intermediate_size": 5128, "vocab_size": 1031,
                        "num_attention_heads": 84, "num_key_value_heads": 4)",
       few}};
}

// What these sizes are for.
constexpr bool is_narrow(const cuda::SmallMGemmShape& shape) { return cuda::small_m_gemm_pays(shape); }
static_assert(is_narrow({.rows = 64, .out = 3584, .in = 1024, .combined = true, .strict = false}));   // gate and up
static_assert(is_narrow({.rows = 64, .out = 8224, .in = 1024, .combined = false, .strict = false}));  // of the GDN
static_assert(is_narrow({.rows = 9, .out = 1024, .in = 2048, .combined = false, .strict = true}));    // o_proj
static_assert(is_narrow({.rows = 64, .out = 2560, .in = 1024, .combined = false, .strict = true}));   // the head
static_assert(cuda::gemm_sequence_pays(int64_t{2} * 2048 * 5120, true));                              // down, o_proj
static_assert(cuda::plan_swiglu_gemm(int64_t{64} * kPrompt, 3072, 1024, 132).kernel ==
              cuda::SwigluGemmPlan::Kernel::kWide);

// Room for each sequence twice.
GoldenBatches batches(const Wide& model, DType dtype, GoldenDevice where, Determinism determinism, Graphs graphs) {
  const test::TempDir folder;
  test::write_file(folder / "config.json", R"({"num_hidden_layers": 2, "rms_norm_eps": 1e-6, "dtype": "bfloat16",
                                               "max_position_embeddings": 128, "tie_word_embeddings": false, )" +
                                               model.config + "}");
  ModelOptions options{.dtype = dtype, .context = {.threads = 2, .determinism = determinism}, .random_weights = 1};
  RunnerConfig runner{.graphs = graphs};
  if (where == GoldenDevice::kCuda) {
    options.ops = &cuda_module().ops("cuda");
    options.runtime = runner.runtime = &testing_support::gpu();
    options.context.stream = options.runtime->stream();
  }
  runner.context = options.context;
  return {load_model(folder.path(), options), runner, 2 * model.decoding.front()};
}

using AllLogits = std::vector<Tensor>;  // of each sequence, of all its tokens

size_t add(const Wide& model, GoldenBatches& batches, int32_t sequence) {
  const auto steps = std::ranges::count_if(model.decoding, [&](int32_t n) { return sequence < n; });
  return batches.add(static_cast<uint64_t>(sequence), kPrompt + static_cast<int32_t>(steps));
}

// Together: the prompts in one step, then a token of each.
AllLogits decoded(const Wide& model, GoldenBatches& batches) {
  std::vector<GoldenBatches::Share> shares;
  for (int32_t s = 0; s < model.decoding.front(); ++s) shares.push_back({add(model, batches, s), kPrompt});
  batches.step(shares);
  for (GoldenBatches::Share& share : shares) share.count = 1;
  for (const int32_t n : model.decoding) batches.step({shares.begin(), shares.begin() + n});
  AllLogits all;
  for (const GoldenBatches::Share& share : shares) all.push_back(copy_of(batches.logits(share.sequence)));
  return all;
}

AllLogits decoded(const Wide& model, DType dtype, GoldenDevice where, Determinism determinism, Graphs graphs) {
  GoldenBatches all = batches(model, dtype, where, determinism, graphs);
  AllLogits logits = decoded(model, all);
  EXPECT_EQ(all.num_graph_steps(), graphs == Graphs::kRequired ? std::ssize(model.decoding) : 0);
  return logits;
}

// Roundings of activations are all that may differ from a CPU in float32: the weights are the same.
void expect_rounded(const Wide& model, const AllLogits& got, const AllLogits& want) {
  double largest = 0;
  for (const Tensor& logits : want) {
    for (int64_t i = 0; i < logits.numel(); ++i) largest = std::max(largest, std::abs(element_as_double(logits, i)));
  }
  ASSERT_EQ(got.size(), want.size());
  for (size_t s = 0; s < want.size(); ++s) {
    ASSERT_TRUE(all_close(got[s], want[s], {.abs = wide_logit_share(model.name) * largest})) << "sequence " << s;
  }
}

class WideModels : public testing::TestWithParam<Wide> {
 protected:
  static AllLogits in_float32() {
    return decoded(GetParam(), DType::kF32, GoldenDevice::kCpu, Determinism::kFast, Graphs::kOff);
  }
};

TEST_P(WideModels, InBFloat16OnACPUAreOffByRoundings) {
  const AllLogits got = decoded(GetParam(), DType::kBF16, GoldenDevice::kCpu, Determinism::kFast, Graphs::kOff);
  expect_rounded(GetParam(), got, in_float32());
}

TEST_P(WideModels, OnADeviceAreOffByRoundingsInBatchesOfEverySize) {
  if (!has_cuda()) GTEST_SKIP() << "no CUDA device";
  const AllLogits want = in_float32();
  for (const Graphs graphs : {Graphs::kOff, Graphs::kRequired}) {
    SCOPED_TRACE(graphs == Graphs::kOff ? "without graphs" : "in graphs");
    const AllLogits got = decoded(GetParam(), DType::kBF16, GoldenDevice::kCuda, Determinism::kFast, graphs);
    expect_rounded(GetParam(), got, want);
  }
}

TEST_P(WideModels, OnADeviceStrictlyHaveTheBitsOfEachSequenceAlone) {
  if (!has_cuda()) GTEST_SKIP() << "no CUDA device";
  GoldenBatches all = batches(GetParam(), DType::kBF16, GoldenDevice::kCuda, Determinism::kStrict, Graphs::kRequired);
  const AllLogits together = decoded(GetParam(), all);
  expect_rounded(GetParam(), together, in_float32());
  for (size_t s = 0; s < together.size(); ++s) {
    const size_t alone = add(GetParam(), all, static_cast<int32_t>(s));
    all.step({{alone, all.left(alone)}});
    ASSERT_TRUE(bit_equal(together[s], all.logits(alone))) << "sequence " << s;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, WideModels, testing::ValuesIn(wide_models()),
                         [](const auto& model) { return model.param.name; });

}  // namespace
}  // namespace headrace::testing_support
