// Bits of held-out windows by the bundled block-diffusion model, in blocks of one token, in its own, and as a
// next-token model: what the bits per byte of its card are sums of, against transformers (tools/demo_models).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <vector>

#include "headrace/core/device_runtime.h"
#include "headrace/ops/cpu/dispatch.h"
#include "headrace/ops/cuda_module.h"
#include "headrace/weights/config_file.h"
#include "models/golden_runner.h"
#include "support/device_mirror.h"
#include "support/gpu.h"

namespace headrace {
namespace {

using Part = test::GoldenRunner::Part;

Tensor ids_of(const JsonValue& value) {
  const std::vector<int64_t> ids = value.as_ints();
  Tensor tensor(DType::kI32, {static_cast<int64_t>(ids.size())});
  for (size_t i = 0; i < ids.size(); ++i) tensor.data_as<int32_t>()[i] = static_cast<int32_t>(ids[i]);
  return tensor;
}

double bits_of(const Tensor& logits, int64_t row, int32_t id) {
  const float* x = logits.data_as<float>() + row * logits.dim(1);
  double sum = 0;
  for (int64_t v = 0; v < logits.dim(1); ++v) sum += std::exp(static_cast<double>(x[v] - x[id]));
  return std::log2(sum);
}

const std::filesystem::path kFairy = testing_support::source_tree() / "demo_models" / "fairy-diffusion";

class HeldOut {
 public:
  HeldOut(const JsonValue& golden, const OpSet& ops, DeviceRuntime& runtime)
      : mask_id_(static_cast<int32_t>(golden.at("mask_id").as_int())),
        runner_(kFairy, ops, DType::kF32, Determinism::kFast, std::nullopt, runtime) {}

  // The mean over the noisy copies of a window, whose l-th has l of each block's masks: block / l times the bits of
  // what is masked. A block sees the clean ones before it.
  double of_blocks(const Tensor& ids, const std::vector<Tensor>& noisy, int32_t block) {
    const auto count = static_cast<int32_t>(ids.numel());
    double bits = 0;
    for (int32_t begin = 0; begin < count; begin += block) {
      Part part{.begin = begin, .end = begin + block, .kind = KeySpan::Kind::kBlock, .block_size = block};
      for (size_t l = 1; l <= noisy.size(); ++l) {
        part.store = Part::Store::kNo;
        bits += of_masks(ids, noisy[l - 1], part) / static_cast<double>(l);
      }
      part.store = Part::Store::kYes;
      of_masks(ids, ids, part);
    }
    return bits;
  }

  double of_next(const Tensor& ids) {
    const auto count = static_cast<int32_t>(ids.numel());
    const Tensor logits(DType::kF32, {count, runner_.info().vocab_size});
    runner_.run(ids, {.begin = 0, .end = count}, logits);
    double bits = 0;
    for (int32_t i = 0; i + 1 < count; ++i) bits += bits_of(logits, i, ids.data_as<int32_t>()[i + 1]);
    return bits;
  }

  Tensor all_masks(int64_t count) const {
    Tensor masks(DType::kI32, {count});
    std::fill_n(masks.data_as<int32_t>(), count, mask_id_);
    return masks;
  }

 private:
  double of_masks(const Tensor& ids, const Tensor& noisy, const Part& part) {
    const Tensor logits(DType::kF32, {ids.numel(), runner_.info().vocab_size});
    runner_.run(noisy, part, logits);
    double bits = 0;
    for (int32_t p = part.begin; p < part.end; ++p) {
      if (noisy.data_as<int32_t>()[p] == mask_id_) bits += bits_of(logits, p, ids.data_as<int32_t>()[p]);
    }
    return bits;
  }

  int32_t mask_id_;
  test::GoldenRunner runner_;
};

void expect_the_golden_bits(const OpSet& ops, DeviceRuntime& runtime) {
  const JsonValue golden = read_json_file(testing_support::golden_folder("fairy_diffusion_bpb.json"));
  const auto block = static_cast<int32_t>(golden.at("block_size").as_int());
  ASSERT_EQ(golden.at("windows").as_array().size(), 2u);
  for (const JsonValue& window : golden.at("windows").as_array()) {
    HeldOut model(golden, ops, runtime);
    const Tensor ids = ids_of(window.at("ids"));
    std::vector<Tensor> noisy, one;
    for (const JsonValue& copy : window.at("noisy").as_array()) noisy.push_back(ids_of(copy));
    one.push_back(model.all_masks(ids.numel()));
    // Of about seven hundred, summed over 128 tokens in float32.
    EXPECT_NEAR(model.of_blocks(ids, one, 1), window.at("bits_of_one").as_float(), 0.02);
    EXPECT_NEAR(model.of_blocks(ids, noisy, block), window.at("bits_of_blocks").as_float(), 0.02);
    EXPECT_NEAR(model.of_next(ids), window.at("bits_of_next").as_float(), 0.02);
  }
}

TEST(FairyDiffusion, BitsOfHeldOutWindowsEqualTransformers) {
  expect_the_golden_bits(cpu::select_kernel_set(), cpu_runtime());
}

TEST(FairyDiffusion, CudaGivesHeldOutWindowsTheSameBits) {
  if (testing_support::mirrored_cuda_ops() == nullptr) GTEST_SKIP() << "no CUDA device";
  if (!std::filesystem::exists(kFairy / "model-00001-of-00002.safetensors")) GTEST_SKIP() << "no weights here";
  for (const std::string_view set : testing_support::kCudaSets) {
    SCOPED_TRACE(set);
    expect_the_golden_bits(cuda_module().ops(set), testing_support::gpu());
  }
}

}  // namespace
}  // namespace headrace
