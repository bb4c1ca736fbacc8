// Diffusion families' logits against those of transformers' native classes under the family's mask, in float32.
#include <gtest/gtest.h>

#include "headrace/core/device_runtime.h"
#include "headrace/ops/cpu/dispatch.h"
#include "headrace/ops/cuda_module.h"
#include "headrace/ops/reference/reference_ops.h"
#include "models/golden_runner.h"
#include "support/device_mirror.h"
#include "support/gpu.h"

namespace headrace {
namespace {

using Part = test::GoldenRunner::Part;
using test::float32_tolerance;
using test::golden_folder;
using test::golden_tensor;
using test::GoldenRunner;
using testing_support::all_close;

// The best set that runs here, the portable one and the reference.
std::vector<const OpSet*> op_sets() {
  return {&cpu::select_kernel_set(), cpu::kernel_sets().back().ops, &reference::ops()};
}

struct Family {
  std::string folder;
  DiffusionInfo info;
  friend std::ostream& operator<<(std::ostream& out, const Family& family) { return out << family.folder; }
};

class DiffusionGolden : public testing::TestWithParam<Family> {
 protected:
  bool blocks() const { return GetParam().info.attention == DiffusionInfo::Attention::kBlockCausal; }
  Part part(int32_t begin, int32_t end, Part::Store store = Part::Store::kYes) const {
    return {.begin = begin,
            .end = end,
            .kind = blocks() ? KeySpan::Kind::kBlock : KeySpan::Kind::kFull,
            .block_size = GetParam().info.block_size,
            .store = store};
  }
};

TEST_P(DiffusionGolden, SaysHowTheFamilyIsDecoded) {
  const auto model = load_model(golden_folder(GetParam().folder), {});
  ASSERT_TRUE(model->info().diffusion);
  const DiffusionInfo &got = *model->info().diffusion, &want = GetParam().info;
  EXPECT_EQ(got.mask_token_id, want.mask_token_id);
  EXPECT_EQ(got.block_size, want.block_size);
  EXPECT_EQ(got.sub_block_size, want.sub_block_size);
  EXPECT_EQ(got.attention, want.attention);
  EXPECT_EQ(got.logits_of, want.logits_of);
  EXPECT_EQ(got.threshold, want.threshold);
  EXPECT_EQ(got.acceptance, want.acceptance);
  EXPECT_EQ(got.loop, want.loop);
  EXPECT_EQ(got.filters, want.filters);
}

void one_pass(const std::string& folder, const Part& part, const OpSet& ops, DeviceRuntime& runtime) {
  SCOPED_TRACE(ops.name);
  const Tensor ids = golden_tensor(folder, "input_ids"), want = golden_tensor(folder, "logits");
  GoldenRunner runner(golden_folder(folder), ops, DType::kF32, Determinism::kFast, std::nullopt, runtime);
  const Tensor got(DType::kF32, want.shape());
  Part all = part;
  all.end = static_cast<int32_t>(ids.numel());
  runner.run(ids, all, got);
  EXPECT_TRUE(all_close(got, want, float32_tolerance(want)));
}

TEST_P(DiffusionGolden, OnePassUnderTheFamilysMaskAgreesWithTransformers) {
  for (const OpSet* ops : op_sets()) one_pass(GetParam().folder, part(0, 0), *ops, cpu_runtime());
}

TEST_P(DiffusionGolden, CudaAgreesInOnePassUnderTheFamilysMask) {
  if (testing_support::mirrored_cuda_ops() == nullptr) GTEST_SKIP() << "no CUDA device";
  for (const std::string_view set : testing_support::kCudaSets) {
    one_pass(GetParam().folder, part(0, 0), cuda_module().ops(set), testing_support::gpu());
  }
}

// A prompt of whole blocks, then block by block: the noisy block without storing it, then the clean one.
class BlockGolden : public DiffusionGolden {
 protected:
  void block_steps(int32_t prompt, const OpSet& ops, DeviceRuntime& runtime) const {
    SCOPED_TRACE(str(ops.name, ", prompt of ", prompt));
    const std::string& folder = GetParam().folder;
    const Tensor ids = golden_tensor(folder, "input_ids"), noisy_ids = golden_tensor(folder, "noisy_ids");
    const Tensor want = golden_tensor(folder, "logits"), want_noisy = golden_tensor(folder, "noisy_logits");
    const auto total = static_cast<int32_t>(ids.numel());
    const int32_t block = GetParam().info.block_size;
    if (prompt >= total) return;
    GoldenRunner runner(golden_folder(folder), ops, DType::kF32, Determinism::kFast, std::nullopt, runtime);
    const Tensor got(DType::kF32, want.shape()), got_noisy(DType::kF32, want.shape());
    if (prompt > 0) runner.run(ids, part(0, prompt), got);
    for (int32_t at = prompt; at < total; at += block) {
      const int32_t end = std::min(at + block, total);
      runner.run(noisy_ids, part(at, end, Part::Store::kNo), got_noisy);
      runner.run(ids, part(at, end), got);
    }
    EXPECT_TRUE(all_close(got, want, float32_tolerance(want)));
    EXPECT_TRUE(all_close(got_noisy.view().slice(prompt, total), want_noisy.view().slice(prompt, total),
                          float32_tolerance(want)));
  }
};

TEST_P(BlockGolden, BlockStepsOverTheCacheAgreeWithTransformers) {
  for (const OpSet* ops : op_sets()) {
    for (const int32_t prompt : {0, 2 * GetParam().info.block_size}) block_steps(prompt, *ops, cpu_runtime());
  }
}

TEST_P(BlockGolden, CudaAgreesInBlockStepsOverTheCache) {
  if (testing_support::mirrored_cuda_ops() == nullptr) GTEST_SKIP() << "no CUDA device";
  for (const int32_t prompt : {0, 2 * GetParam().info.block_size}) {
    block_steps(prompt, cuda_module().ops("cuda"), testing_support::gpu());
  }
}

// Of the tiny checkpoints of two families each.
constexpr DiffusionInfo kDream = {.mask_token_id = 250,
                                  .block_size = 32,
                                  .sub_block_size = 32,
                                  .attention = DiffusionInfo::Attention::kFull,
                                  .logits_of = DiffusionInfo::LogitsOf::kBefore,
                                  .acceptance = DiffusionInfo::Acceptance::kAtLeast,
                                  .loop = DiffusionInfo::Loop::kTimesteps,
                                  .filters = DiffusionInfo::Filters::kTopPFirst};
constexpr DiffusionInfo kLLaDA = {.mask_token_id = 250,
                                  .block_size = 32,
                                  .sub_block_size = 32,
                                  .attention = DiffusionInfo::Attention::kFull,
                                  .acceptance = DiffusionInfo::Acceptance::kAtLeast,
                                  .loop = DiffusionInfo::Loop::kEven};

const std::vector<Family> kFamilies = {
    {"dream", kDream},
    {"diffucoder", kDream},
    {"fast_dllm_v2",
     {.mask_token_id = 250, .block_size = 16, .sub_block_size = 8, .logits_of = DiffusionInfo::LogitsOf::kBefore}},
    {"llada", kLLaDA},
    {"llada_moe", kLLaDA},
    {"llada2", {.mask_token_id = 250, .block_size = 8, .sub_block_size = 8, .threshold = 0.95f}},
    {"stable_diffcoder",
     {.mask_token_id = 5,
      .block_size = 4,
      .sub_block_size = 4,
      .threshold = 0.95f,
      .acceptance = DiffusionInfo::Acceptance::kAtLeast,
      .loop = DiffusionInfo::Loop::kEven}},
    {"sdar", {.mask_token_id = 250, .block_size = 4, .sub_block_size = 4, .threshold = 0.85f}},
    {"sdar_moe", {.mask_token_id = 250, .block_size = 8, .sub_block_size = 8, .threshold = 0.85f}},
};

// Full attention has no blocks that can be kept.
std::vector<Family> families_of_blocks() {
  std::vector<Family> families = kFamilies;
  std::erase_if(families, [](const Family& f) { return f.info.attention != DiffusionInfo::Attention::kBlockCausal; });
  return families;
}

INSTANTIATE_TEST_SUITE_P(Families, DiffusionGolden, testing::ValuesIn(kFamilies),
                         [](const auto& family) { return family.param.folder; });
INSTANTIATE_TEST_SUITE_P(Families, BlockGolden, testing::ValuesIn(families_of_blocks()),
                         [](const auto& family) { return family.param.folder; });

}  // namespace
}  // namespace headrace
