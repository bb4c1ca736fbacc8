// Every family's logits against those of transformers, in float32, however the prompt is cut.
#include <gtest/gtest.h>

#include <cstdlib>

#include "headrace/core/device_runtime.h"
#include "headrace/models/gguf_model_file.h"
#include "headrace/ops/cpu/dispatch.h"
#include "headrace/ops/cuda_module.h"
#include "headrace/ops/reference/reference_ops.h"
#include "models/golden_runner.h"
#include "models/model_with_tokenizer.h"
#include "support/all_close.h"
#include "support/device_mirror.h"
#include "support/gpu.h"
#include "support/tolerances.h"

namespace headrace {
namespace {

using testing_support::all_close;
using testing_support::bit_equal;

using test::float32_tolerance;
using test::golden_folder;
using test::golden_tensor;
using test::GoldenRunner;

struct Golden {
  Tensor ids, logits;
};

Golden golden_of(const std::string& family) {
  return {golden_tensor(family, "input_ids"), golden_tensor(family, "logits")};
}

double largest_logit(const Golden& golden) { return float32_tolerance(golden.logits).abs * 1e4; }

// The text from token 0 on in parts of these sizes, the last size repeated.
Tensor run_all(GoldenRunner& runner, const Golden& golden, const std::vector<int32_t>& cuts) {
  Tensor logits(DType::kF32, golden.logits.shape());
  const auto total = static_cast<int32_t>(golden.ids.numel());
  int32_t done = 0;
  for (size_t i = 0; done < total; ++i) {
    const int32_t end = std::min(total, done + cuts[std::min(i, cuts.size() - 1)]);
    runner.run(golden.ids, {.begin = done, .end = end}, logits);
    done = end;
  }
  return logits;
}

class ModelGolden : public testing::TestWithParam<std::string> {};

// Whole, in odd chunks, and a prompt of 20 with one token at a time behind it.
const std::vector<std::vector<int32_t>> kCuts = {{77}, {7, 13, 1, 29}, {65, 12}, {20, 1}};

TEST_P(ModelGolden, EveryKernelSetAgreesWithTransformersHoweverThePromptIsCut) {
  const Golden golden = golden_of(GetParam());
  for (const cpu::KernelSet& set : cpu::kernel_sets()) {
    if (!set.runs_here()) continue;
    for (const auto& cuts : kCuts) {
      SCOPED_TRACE(str(set.ops->name, ", first cut ", cuts.front()));
      GoldenRunner runner(golden_folder(GetParam()), *set.ops, DType::kF32);
      EXPECT_TRUE(all_close(run_all(runner, golden, cuts), golden.logits, float32_tolerance(golden.logits)));
    }
  }
}

TEST_P(ModelGolden, TheReferenceAgreesWithTransformers) {
  const Golden golden = golden_of(GetParam());
  GoldenRunner runner(golden_folder(GetParam()), reference::ops(), DType::kF32);
  EXPECT_TRUE(all_close(run_all(runner, golden, {50, 27}), golden.logits, float32_tolerance(golden.logits)));
}

TEST_P(ModelGolden, CudaAgreesWithTransformersHoweverThePromptIsCut) {
  if (testing_support::mirrored_cuda_ops() == nullptr) GTEST_SKIP() << "no CUDA device";
  const Golden golden = golden_of(GetParam());
  for (const std::string_view set : testing_support::kCudaSets) {
    for (const auto& cuts : kCuts) {
      SCOPED_TRACE(str(set, ", first cut ", cuts.front()));
      GoldenRunner runner(golden_folder(GetParam()), cuda_module().ops(set), DType::kF32, Determinism::kFast,
                          std::nullopt, testing_support::gpu());
      EXPECT_TRUE(all_close(run_all(runner, golden, cuts), golden.logits, float32_tolerance(golden.logits)));
    }
  }
}

// Files that another program wrote from the golden checkpoints (tests/clients/gguf_checks.py), one for each family.
class GgufGolden : public testing::TestWithParam<std::string> {};

void expect_logits_of_file(const std::string& family, const OpSet& ops, DeviceRuntime& runtime) {
  SCOPED_TRACE(ops.name);
  const Golden golden = golden_of(family);
  const std::filesystem::path folder = std::getenv("HEADRACE_GGUF_FILES");
  GoldenRunner runner(folder / (family + ".gguf"), ops, DType::kF32, Determinism::kFast, std::nullopt, runtime);
  EXPECT_TRUE(all_close(run_all(runner, golden, {20, 1}), golden.logits, float32_tolerance(golden.logits)));
}

constexpr const char* kNoGgufFiles = "HEADRACE_GGUF_FILES names no folder";

TEST_P(GgufGolden, FilesHaveTheFamilysLogits) {
  if (std::getenv("HEADRACE_GGUF_FILES") == nullptr) GTEST_SKIP() << kNoGgufFiles;
  for (const cpu::KernelSet& set : cpu::kernel_sets()) {
    if (set.runs_here()) expect_logits_of_file(GetParam(), *set.ops, cpu_runtime());
  }
}

TEST_P(GgufGolden, CudaRunsFilesWithTheFamilysLogits) {
  if (std::getenv("HEADRACE_GGUF_FILES") == nullptr) GTEST_SKIP() << kNoGgufFiles;
  if (testing_support::mirrored_cuda_ops() == nullptr) GTEST_SKIP() << "no CUDA device";
  expect_logits_of_file(GetParam(), cuda_module().ops("cuda"), testing_support::gpu());
}

INSTANTIATE_TEST_SUITE_P(Families, GgufGolden,
                         testing::Values("llama", "qwen2", "qwen3", "qwen3_moe", "qwen3_next", "qwen3_5",
                                         "qwen3_5_moe"),
                         [](const auto& family) { return family.param; });

// Files of all matrices in bfloat16, as the golden checkpoints store them.
TEST(GgufModelFile, FilesThatAreWrittenHaveTheFamilysLogits) {
  for (const std::string family : {"llama", "qwen2", "qwen3", "qwen3_moe", "qwen3_next", "qwen3_5", "qwen3_5_moe",
                                   "qwen3_5_released", "qwen3_5_moe_released"}) {
    SCOPED_TRACE(family);
    const test::TempDir dir;
    test::make_model(dir, family);
    write_gguf(read_description(dir.path()), dir / "model.gguf", {.target = DType::kBF16});
    const Golden golden = golden_of(family);
    for (const cpu::KernelSet& set : cpu::kernel_sets()) {
      if (!set.runs_here()) continue;
      GoldenRunner runner(dir / "model.gguf", *set.ops, DType::kF32);
      EXPECT_TRUE(all_close(run_all(runner, golden, {20, 1}), golden.logits, float32_tolerance(golden.logits)));
    }
  }
}

// A step of which few rows' logits are wanted, or none, as prompts are; in strict mode the same bits as among all.
void expect_logits_of_some_rows_as_among_all(const std::string& family, const OpSet& ops, DeviceRuntime& runtime) {
  SCOPED_TRACE(ops.name);
  const Golden golden = golden_of(family);
  const auto run = [&](int32_t of_first, int32_t of_second) {
    GoldenRunner runner(golden_folder(family), ops, DType::kF32, Determinism::kStrict, std::nullopt, runtime);
    Tensor logits = Tensor::zeros(DType::kF32, golden.logits.shape());
    runner.run(golden.ids, {.begin = 0, .end = 41, .logits_every = of_first}, logits);
    runner.run(golden.ids, {.begin = 41, .end = 77, .logits_every = of_second}, logits);
    return logits;
  };
  const Tensor all = run(1, 1), some = run(7, 36), last = run(42, 36);
  for (int64_t i = 0; i < 77; ++i) {
    const auto expect_row = [&](const Tensor& logits, bool wanted) {
      const Tensor none = Tensor::zeros(DType::kF32, {all.dim(1)});
      EXPECT_TRUE(bit_equal(logits.view().select(i), wanted ? all.view().select(i) : none.view())) << i;
    };
    expect_row(some, i < 41 ? (i + 1) % 7 == 0 : i == 76);
    expect_row(last, i == 76);
  }
}

TEST_P(ModelGolden, LogitsOfSomeRowsAreThoseAmongAll) {
  for (const cpu::KernelSet& set : cpu::kernel_sets()) {
    if (set.runs_here()) expect_logits_of_some_rows_as_among_all(GetParam(), *set.ops, cpu_runtime());
  }
}

TEST_P(ModelGolden, CudaLogitsOfSomeRowsAreThoseAmongAll) {
  if (testing_support::mirrored_cuda_ops() == nullptr) GTEST_SKIP() << "no CUDA device";
  expect_logits_of_some_rows_as_among_all(GetParam(), cuda_module().ops("cuda"), testing_support::gpu());
}

TEST_P(ModelGolden, BFloat16ActivationsStayWithinTheFamilysTolerance) {
  const Golden golden = golden_of(GetParam());
  const double largest = largest_logit(golden);
  for (const cpu::KernelSet& set : cpu::kernel_sets()) {
    if (!set.runs_here()) continue;
    SCOPED_TRACE(set.ops->name);
    GoldenRunner runner(golden_folder(GetParam()), *set.ops, DType::kBF16);
    const Tensor got = run_all(runner, golden, {20, 1});
    EXPECT_TRUE(all_close(got, golden.logits, {.abs = testing_support::bfloat16_logit_share(GetParam()) * largest}));
  }
}

// Activations stay in float32: what differs is what 8 bits cost, and nothing else.
Tensor logits_over(DType kv_dtype, const std::string& family, const OpSet& ops, DeviceRuntime& runtime) {
  GoldenRunner runner(golden_folder(family), ops, DType::kF32, Determinism::kFast, std::nullopt, runtime, kv_dtype);
  return run_all(runner, golden_of(family), {20, 1});
}

void expect_8_bits_within(DType kv_dtype, const std::string& family, double share, double flip_share) {
  const Golden golden = golden_of(family);
  const double largest = largest_logit(golden);
  const Tensor want = logits_over(kv_dtype, family, reference::ops(), cpu_runtime());
  EXPECT_TRUE(all_close(want, golden.logits, {.abs = share * largest}));
  EXPECT_FALSE(all_close(want, golden.logits, float32_tolerance(golden.logits))) << "8 bits had no effect";
  for (const cpu::KernelSet& set : cpu::kernel_sets()) {
    if (!set.runs_here()) continue;
    SCOPED_TRACE(set.ops->name);
    EXPECT_TRUE(all_close(logits_over(kv_dtype, family, *set.ops, cpu_runtime()), want, {.abs = flip_share * largest}));
  }
}

TEST_P(ModelGolden, FP8KeysAndValuesStayWithinTheirToleranceAndEqualTheReferences) {
  expect_8_bits_within(DType::kE4M3, GetParam(), testing_support::fp8_logit_share(GetParam()),
                       testing_support::fp8_flip_share());
}

TEST_P(ModelGolden, Int8KeysAndValuesStayWithinTheirToleranceAndEqualTheReferences) {
  expect_8_bits_within(DType::kI8, GetParam(), testing_support::int8_logit_share(GetParam()),
                       testing_support::int8_flip_share());
}

TEST_P(ModelGolden, CudaLogitsOverFP8KeysAndValuesEqualTheReferences) {
  if (testing_support::mirrored_cuda_ops() == nullptr) GTEST_SKIP() << "no CUDA device";
  const double largest = largest_logit(golden_of(GetParam()));
  const Tensor want = logits_over(DType::kE4M3, GetParam(), reference::ops(), cpu_runtime());
  const Tensor got = logits_over(DType::kE4M3, GetParam(), cuda_module().ops("cuda"), testing_support::gpu());
  EXPECT_TRUE(all_close(got, want, {.abs = testing_support::fp8_flip_share() * largest}));
}

TEST_P(ModelGolden, StrictLogitsDoNotDependOnTheCut) {
  const Golden golden = golden_of(GetParam());
  using Types = std::pair<DType, DType>;  // of activations, and of keys and values
  for (const auto& [dtype, kv] :
       {Types(DType::kF32, DType::kF32), Types(DType::kBF16, DType::kBF16), Types(DType::kF32, DType::kE4M3),
        Types(DType::kBF16, DType::kE4M3), Types(DType::kF32, DType::kI8), Types(DType::kBF16, DType::kI8)}) {
    const auto runner_of = [&, activations = dtype, cache = kv] {
      return GoldenRunner(golden_folder(GetParam()), cpu::select_kernel_set(), activations, Determinism::kStrict,
                          std::nullopt, cpu_runtime(), cache);
    };
    GoldenRunner whole = runner_of();
    const Tensor want = run_all(whole, golden, {77});
    for (const auto& cuts : kCuts) {
      SCOPED_TRACE(str(name_of(dtype), " and ", name_of(kv), ", first cut ", cuts.front()));
      GoldenRunner runner = runner_of();
      EXPECT_TRUE(bit_equal(run_all(runner, golden, cuts), want));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ModelGolden,
                         testing::Values("llama", "qwen2", "qwen3", "qwen3_moe", "qwen3_next", "qwen3_5", "qwen3_5_moe",
                                         "qwen3_5_released", "qwen3_5_moe_released"),
                         [](const auto& family) { return family.param; });

}  // namespace
}  // namespace headrace
