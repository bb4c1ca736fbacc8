// Weights that become blocks when they are read.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "headrace/core/block_quantizer.h"
#include "headrace/core/device_runtime.h"
#include "headrace/weights/checkpoint.h"
#include "support/random.h"
#include "support/refusal.h"
#include "support/safetensors_writer.h"

namespace headrace {
namespace {

using test::TempDir;
using test::write_safetensors;
using testing_support::Random;
using testing_support::random_tensor;
using testing_support::refusal_of;

constexpr QuantModel kOneLayer{.num_layers = 16};
const std::string kUp = "model.layers.5.mlp.up_proj.weight", kDown = "model.layers.0.mlp.down_proj.weight",
                  kNorm = "model.layers.0.input_layernorm.weight";

std::vector<float> row_of(const TensorView& matrix, int64_t row) {
  std::vector<float> values(static_cast<size_t>(matrix.dim(1)));
  for (int64_t i = 0; i < matrix.dim(1); ++i) {
    values[static_cast<size_t>(i)] = static_cast<float>(element_as_double(matrix.select(row), i));
  }
  return values;
}

// The row after it was blocks.
std::vector<float> expected_row(const TensorView& matrix, int64_t row, BlockFormat format) {
  std::vector<float> values = row_of(matrix, row);
  const BlockLayout& layout = layout_of(format);
  std::vector<unsigned char> blocks(values.size() / static_cast<size_t>(layout.elements) *
                                    static_cast<size_t>(layout.bytes));
  quantize(format, values, blocks);
  dequantize(format, blocks, values);
  return values;
}

void expect_packed(const WeightView& weight, const TensorView& floats, BlockFormat format) {
  const PackedMatrix* const packed = weight.packed();
  ASSERT_NE(packed, nullptr);
  EXPECT_EQ(packed->format, format);
  EXPECT_EQ(weight.shape(), floats.shape());
  std::vector<float> found(static_cast<size_t>(floats.dim(1)));
  for (int64_t row = 0; row < floats.dim(0); ++row) {
    unpack_row(*packed, row, found);
    ASSERT_EQ(found, expected_row(floats, row, format)) << "row " << row;
  }
}

TEST(QuantizeAtLoad, MatricesBecomeTheBlocksOfTheMix) {
  Random random(1);
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF16}) {
    const Tensor up = random_tensor(random, dtype, {40, 512}, 0.02), down = random_tensor(random, dtype, {24, 256}),
                 norm = random_tensor(random, dtype, {256});
    const TempDir dir;
    write_safetensors(dir / "model.safetensors", {{kUp, up}, {kDown, down}, {kNorm, norm}});
    for (const int threads : {1, 3}) {
      Checkpoint checkpoint = Checkpoint::open(dir.path(), {.threads = threads});
      checkpoint.quantize(QuantPreset::kQ4_K_M, kOneLayer);
      expect_packed(checkpoint.weight(kUp, {40, 512}), up, BlockFormat::kQ4_K);
      expect_packed(checkpoint.weight(kDown, {24, 256}), down, BlockFormat::kQ6_K);
      EXPECT_EQ(checkpoint.weight(kUp, {40, 512}).packed()->data, checkpoint.weight(kUp, {40, 512}).packed()->data);
      EXPECT_EQ(checkpoint.weight(kNorm, {256}).packed(), nullptr);
      const int64_t blocks = packed_bytes(BlockFormat::kQ4_K, 40, 512) + packed_bytes(BlockFormat::kQ6_K, 24, 256);
      EXPECT_EQ(checkpoint.stored_bytes(), blocks + norm.bytes());
      checkpoint.require_all_used();
      EXPECT_THROW(checkpoint.weight(kUp, {512, 40}), Error);
    }
  }
}

TEST(QuantizeAtLoad, RandomWeightsToo) {
  Checkpoint floats = Checkpoint::random(7, 2), blocks = Checkpoint::random(7, 2);
  blocks.quantize(QuantPreset::kQ8_0, kOneLayer);
  const RandomValues narrow{.stddev = 0.05};
  expect_packed(blocks.weight(kUp, {20, 64}, narrow), floats.tensor(kUp, {20, 64}, narrow), BlockFormat::kQ8_0);
  EXPECT_EQ(blocks.stored_bytes(), packed_bytes(BlockFormat::kQ8_0, 20, 64));
  EXPECT_EQ(blocks.weight(kNorm, {64}).packed(), nullptr);
  EXPECT_THROW(blocks.weight(kUp, {40, 64}, narrow), Error);
}

TEST(QuantizeAtLoad, StackedExpertsBecomeMatricesOfTheirOwn) {
  Random random(2);
  const Tensor gate_up = random_tensor(random, DType::kBF16, {3, 32, 64}),
               down = random_tensor(random, DType::kBF16, {3, 64, 32});
  const std::string experts = "model.layers.1.mlp.experts.";
  const TempDir dir;
  write_safetensors(dir / "model.safetensors", {{experts + "gate_up_proj", gate_up}, {experts + "down_proj", down}});
  Checkpoint checkpoint = Checkpoint::open(dir.path());
  checkpoint.quantize(QuantPreset::kQ8_0, kOneLayer);
  EXPECT_FALSE(checkpoint.has(experts + "gate_up_proj"));
  for (int64_t e = 0; e < 3; ++e) {
    const std::string expert = experts + std::to_string(e);
    const TensorView both = gate_up.view().select(e);
    expect_packed(checkpoint.weight(expert + ".gate_proj.weight", {16, 64}), both.slice(0, 16), BlockFormat::kQ8_0);
    expect_packed(checkpoint.weight(expert + ".up_proj.weight", {16, 64}), both.slice(16, 32), BlockFormat::kQ8_0);
    expect_packed(checkpoint.weight(expert + ".down_proj.weight", {64, 32}), down.view().select(e), BlockFormat::kQ8_0);
  }
  checkpoint.require_all_used();
}

// Beside blocks where that is possible, else merged into floats.
TEST(QuantizeAtLoad, AnAdapterIsAppliedBesideTheBlocks) {
  Random random(4);
  const std::string query = "model.layers.0.self_attn.q_proj", key = "model.layers.0.self_attn.k_proj";
  const Tensor w = random_tensor(random, DType::kF32, {32, 64}), a = random_tensor(random, DType::kF32, {2, 64}),
               b = random_tensor(random, DType::kF32, {32, 2}), copy = random_tensor(random, DType::kF32, {32, 64});
  const TempDir dir, lora;
  write_safetensors(dir / "model.safetensors", {{query + ".weight", w}, {key + ".weight", w}});
  test::write_file(lora / "adapter_config.json",
                   R"({"r":2,"lora_alpha":4,"target_modules":["q_proj"],"modules_to_save":["k_proj"]})");
  write_safetensors(lora / "adapter_model.safetensors", {{"base_model.model." + query + ".lora_A.weight", a},
                                                         {"base_model.model." + query + ".lora_B.weight", b},
                                                         {"base_model.model." + key + ".weight", copy}});
  Checkpoint checkpoint = Checkpoint::open(dir.path());
  checkpoint.attach(LoraAdapter::open(lora.path()), 1);
  checkpoint.quantize(QuantPreset::kQ8_0, kOneLayer);
  const WeightView adapted = checkpoint.weight(query + ".weight", {32, 64});
  expect_packed(adapted, w, BlockFormat::kQ8_0);
  EXPECT_NE(adapted.change(), nullptr);
  EXPECT_EQ(checkpoint.weight(key + ".weight", {32, 64}).packed(), nullptr);  // a copy of the whole weight
}

// A family's own name is stored, the common one says what the weight is.
TEST(QuantizeAtLoad, RolesFollowTheCommonName) {
  Random random(3);
  const Tensor matrix = random_tensor(random, DType::kBF16, {32, 64});
  const TempDir dir;
  write_safetensors(dir / "model.safetensors", {{"transformer.5.ff_out.weight", matrix}});
  Checkpoint checkpoint = Checkpoint::open(dir.path());
  constexpr NameRule kRule{"model.layers.5.mlp.up_proj", "transformer.5.ff_out"};
  checkpoint.rename({&kRule, 1});
  checkpoint.quantize(QuantPreset::kQ5_K_M, kOneLayer);
  expect_packed(checkpoint.weight(kUp, {32, 64}), matrix, BlockFormat::kQ5_1);
}

TEST(QuantizeAtLoad, AValueThatBlocksCannotHoldIsRefusedWithItsTensor) {
  for (const double value : {std::numeric_limits<double>::quiet_NaN(), 1e6}) {
    Tensor matrix(DType::kBF16, {32, 64});
    for (int64_t i = 0; i < matrix.numel(); ++i) set_element(matrix, i, 0);
    set_element(matrix, 32 * 64 - 1, value);
    const TempDir dir;
    write_safetensors(dir / "model.safetensors", {{kUp, matrix}});
    Checkpoint checkpoint = Checkpoint::open(dir.path());
    checkpoint.quantize(QuantPreset::kQ8_0, kOneLayer);
    const auto refusal = refusal_of([&] { checkpoint.weight(kUp, {32, 64}); });
    EXPECT_EQ(refusal.code, ErrorCode::kModelFile);
    EXPECT_NE(refusal.sentence.find("model.safetensors: tensor '" + kUp + "' holds "), std::string::npos);
    EXPECT_TRUE(refusal.sentence.ends_with(", which Q8_0 cannot")) << refusal.sentence;
  }
}

}  // namespace
}  // namespace headrace
