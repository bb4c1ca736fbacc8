// Linear layers over quantised weights of a file.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "headrace/layers/linear.h"
#include "headrace/ops/cpu/dispatch.h"
#include "headrace/ops/reference/reference_ops.h"
#include "support/all_close.h"
#include "support/gguf_model.h"
#include "support/safetensors_writer.h"

namespace headrace {
namespace {

constexpr const char* kQuery = "model.layers.0.self_attn.q_proj";
constexpr int64_t kOut = 48, kIn = 32;

Tensor waves(const Shape& shape, double step) {
  Tensor out(DType::kF32, shape);
  for (int64_t i = 0; i < out.numel(); ++i) set_element(out, i, std::sin(step * static_cast<double>(i)));
  return out;
}

// A file with one quantised matrix, and an adapter of it.
struct AdaptedFile {
  test::TempDir folder, adapter;
  Tensor a = waves({3, kIn}, 0.7), b = waves({kOut, 3}, 0.3);

  AdaptedFile() {
    test::GgufModel model("qwen3");
    model.key("attention.head_count", 1);
    model.blocks("blk.0.attn_q.weight", kOut);
    model.write(folder);
    test::write_file(adapter / "adapter_config.json", R"({"r":3,"lora_alpha":6,"target_modules":["q_proj"]})");
    const std::string module = str("base_model.model.", kQuery);
    test::write_safetensors(adapter / "adapter_model.safetensors",
                            {{module + ".lora_A.weight", a}, {module + ".lora_B.weight", b}});
  }
  Checkpoint open() const { return Checkpoint::open(folder / "model.gguf"); }
};

Tensor multiplied(Checkpoint& checkpoint, const Tensor& x, Activations activations) {
  const WeightScope scope(checkpoint);
  const Linear layer(scope, kQuery, kOut, kIn);
  const LayerContext context{.ops = &cpu::select_kernel_set(), .op = {.activations = activations}};
  EXPECT_NE(layer.weight().packed(), nullptr);
  return layer(context, x);
}

TEST(PackedLinearLayer, AnAdapterIsAppliedBesidePackedWeights) {
  const AdaptedFile files;
  Checkpoint plain = files.open(), adapted = files.open();
  adapted.attach(LoraAdapter::open(files.adapter.path()), 1);
  const Tensor x = waves({5, kIn}, 0.11);
  const Tensor base = multiplied(plain, x, Activations::kFloat), found = multiplied(adapted, x, Activations::kFloat);
  for (int64_t t = 0; t < 5; ++t) {
    for (int64_t o = 0; o < kOut; ++o) {
      double expected = element_as_double(base, t * kOut + o);
      for (int64_t r = 0; r < 3; ++r) {
        double inner = 0;
        for (int64_t i = 0; i < kIn; ++i)
          inner += element_as_double(x, t * kIn + i) * element_as_double(files.a, r * kIn + i);
        expected += 2 * inner * element_as_double(files.b, o * 3 + r);
      }
      EXPECT_NEAR(element_as_double(found, t * kOut + o), expected, 1e-4 * std::max(1.0, std::abs(expected)));
    }
  }
  adapted.require_all_used();
}

// What cannot be applied beside is merged into floats.
TEST(PackedLinearLayer, ACopyOfTheWholeWeightTakesItsPlace) {
  const AdaptedFile files;
  const Tensor copy = waves({kOut, kIn}, 0.2);
  const std::string module = str("base_model.model.", kQuery);
  const Tensor nothing = Tensor::zeros(DType::kF32, {kOut, 3});
  test::write_safetensors(files.adapter / "adapter_model.safetensors", {{module + ".lora_A.weight", files.a},
                                                                        {module + ".lora_B.weight", nothing},
                                                                        {module + ".base_layer.weight", copy}});
  Checkpoint adapted = files.open();
  adapted.attach(LoraAdapter::open(files.adapter.path()), 1);
  const WeightView weight = adapted.weight(str(kQuery, ".weight"), {kOut, kIn});
  ASSERT_EQ(weight.packed(), nullptr);
  EXPECT_TRUE(testing_support::all_close(weight.floats(), copy, {.abs = 0.005}));
}

}  // namespace
}  // namespace headrace
