// DiffusionGemma against transformers, in float32: text, a canvas without and with a signal from the step before, the
// canvas after it; and what its config.json may say.
#include "headrace/models/diffusion_gemma.h"
#include "headrace/core/device_runtime.h"

#include <gtest/gtest.h>

#include "headrace/models/families.h"
#include "headrace/ops/cpu/dispatch.h"
#include "headrace/ops/cuda_module.h"
#include "headrace/ops/reference/reference_ops.h"
#include "models/golden_runner.h"
#include "support/device_mirror.h"
#include "support/gpu.h"
#include "support/refusal.h"
#include "support/safetensors_writer.h"

namespace headrace {
namespace {

using Part = test::GoldenRunner::Part;
using test::golden_folder;
using test::golden_tensor;
using test::GoldenRunner;

constexpr const char* kFamily = "diffusion_gemma";
constexpr int32_t kText = 21, kCanvas = 16, kEnd = kText + 2 * kCanvas;
constexpr int64_t kVocab = 256;

Part canvas(int32_t begin, std::optional<SelfConditioning> previous = {}) {
  return {.begin = begin,
          .end = begin + kCanvas,
          .kind = KeySpan::Kind::kFull,
          .store = Part::Store::kNo,
          .self_conditioning = previous};
}

void expect_rows(const Tensor& got, int32_t begin, const char* name) {
  const Tensor want = golden_tensor(kFamily, name);
  EXPECT_TRUE(testing_support::all_close(got.view().slice(begin, begin + kCanvas), want, test::float32_tolerance(want)))
      << name;
}

// The whole of a text at once, or in chunks that a window reaches across.
void expect_every_step(const OpSet& ops, DeviceRuntime& runtime) {
  const Tensor ids = golden_tensor(kFamily, "input_ids"), signal = golden_tensor(kFamily, "signal");
  const Tensor mask(DType::kU8, {kCanvas}), got(DType::kF32, {kEnd, kVocab});
  for (int64_t i = 0; i < kCanvas; ++i) set_element(mask, i, 1);
  for (const int32_t cut : {kText, 5}) {
    SCOPED_TRACE(str(ops.name, ", first cut ", cut));
    GoldenRunner runner(golden_folder(kFamily), ops, DType::kF32, Determinism::kFast, std::nullopt, runtime);
    runner.run(ids, {.end = cut}, got);
    if (cut < kText) runner.run(ids, {.begin = cut, .end = kText}, got);
    runner.run(ids, canvas(kText), got);
    expect_rows(got, kText, "first_logits");
    runner.run(ids, canvas(kText, SelfConditioning{mask, signal}), got);
    expect_rows(got, kText, "second_logits");
    runner.run(ids, {.begin = kText, .end = kText + kCanvas}, got);  // the finished canvas becomes text
    runner.run(ids, canvas(kText + kCanvas), got);
    expect_rows(got, kText + kCanvas, "third_logits");
  }
}

TEST(DiffusionGemma, EveryStepOfTwoCanvasesAgreesWithTransformers) {
  for (const OpSet* ops : {&cpu::select_kernel_set(), cpu::kernel_sets().back().ops, &reference::ops()}) {
    expect_every_step(*ops, cpu_runtime());
  }
}

TEST(DiffusionGemma, CudaAgreesInEveryStepOfTwoCanvases) {
  if (testing_support::mirrored_cuda_ops() == nullptr) GTEST_SKIP() << "no CUDA device";
  for (const std::string_view set : testing_support::kCudaSets) {
    expect_every_step(cuda_module().ops(set), testing_support::gpu());
  }
}

TEST(DiffusionGemma, ACanvasWhoseRowsAreNotMarkedHasNoSignal) {
  const Tensor ids = golden_tensor(kFamily, "input_ids"), got(DType::kF32, {kEnd, kVocab});
  const Tensor mask = Tensor::zeros(DType::kU8, {kCanvas}), none(DType::kF32, {0, kVocab});
  GoldenRunner runner(golden_folder(kFamily), cpu::select_kernel_set(), DType::kF32);
  runner.run(ids, {.end = kText}, got);
  runner.run(ids, canvas(kText, SelfConditioning{mask, none}), got);
  expect_rows(got, kText, "first_logits");
}

TEST(DiffusionGemma, ASignalOfAnotherShapeIsRefusedAndByOtherModelsToo) {
  const Tensor ids = golden_tensor(kFamily, "input_ids"), got(DType::kF32, {kEnd, kVocab});
  const Tensor mask(DType::kU8, {kCanvas}), signal = golden_tensor(kFamily, "signal");
  for (int64_t i = 0; i < kCanvas; ++i) set_element(mask, i, 1);
  GoldenRunner runner(golden_folder(kFamily), cpu::select_kernel_set(), DType::kF32);
  runner.run(ids, {.end = kText}, got);
  EXPECT_THROW(runner.run(ids, canvas(kText, SelfConditioning{mask, signal.view().slice(0, 15)}), got), Error);
  GoldenRunner other(golden_folder("dream"), cpu::select_kernel_set(), DType::kF32);
  EXPECT_THROW(other.run(ids, {.end = kCanvas, .self_conditioning = SelfConditioning{mask, signal}}, got), Error);
}

TEST(DiffusionGemma, HasAPoolPerKindOfLayerAndNoMask) {
  const auto model = load_model(golden_folder(kFamily), {});
  const ModelInfo& info = model->info();
  ASSERT_EQ(info.kv_groups.size(), 2u);
  EXPECT_EQ(info.kv_groups[0].shape, (KVLayerShape{2, 16, 16}));
  EXPECT_EQ(info.kv_groups[0].layer_ids, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(info.kv_groups[1].shape, (KVLayerShape{1, 32, 32}));
  EXPECT_EQ(info.kv_groups[1].layer_ids, std::vector<int32_t>{2});
  ASSERT_EQ(info.attention_kinds.size(), 2u);
  EXPECT_EQ(info.attention_kinds[0].sliding_window_size, 8);
  EXPECT_EQ(std::pair(info.attention_kinds[1].head_dim, info.attention_kinds[1].layer_id), std::pair(32, 2));
  EXPECT_EQ(info.eos_ids, std::vector<int32_t>{1});
  ASSERT_TRUE(info.diffusion);
  EXPECT_FALSE(info.diffusion->mask_token_id);
  EXPECT_EQ(info.diffusion->block_size, kCanvas);
  EXPECT_EQ(info.diffusion->attention, DiffusionInfo::Attention::kCanvas);
}

// Released files state the sizes of full layers by name, and leave out layer_types and tie_word_embeddings.
TEST(DiffusionGemma, TheOldSpellingOfItsConfigGivesTheSameModel) {
  const test::TempDir directory;
  test::write_file(
      directory / "config.json",
      R"({"architectures":["DiffusionGemmaForBlockDiffusion"],"canvas_length":16,"text_config":{"vocab_size":256,)"
      R"("hidden_size":64,"intermediate_size":96,"num_hidden_layers":3,"num_attention_heads":4,"num_key_value_heads":2,)"
      R"("head_dim":16,"global_head_dim":32,"num_global_key_value_heads":1,"sliding_window":8,"num_experts":6,)"
      R"("top_k_experts":2,"moe_intermediate_size":32,"rope_theta":1e6,"rope_local_base_freq":1e4,)"
      R"("eos_token_id":1}})");
  std::filesystem::copy_file(golden_folder(kFamily) / "model.safetensors", directory / "model.safetensors");
  const Tensor ids = golden_tensor(kFamily, "input_ids"), got(DType::kF32, {kEnd, kVocab});
  GoldenRunner runner(directory.path(), cpu::select_kernel_set(), DType::kF32);
  runner.run(ids, {.end = kText}, got);
  runner.run(ids, canvas(kText), got);
  expect_rows(got, kText, "first_logits");
}

// Beside the golden weights, whose sliding layers do not scale.
void write_scaled(const test::TempDir& directory, const std::string& sliding, const std::string& more) {
  test::write_file(
      directory / "config.json",
      R"({"architectures":["DiffusionGemmaForBlockDiffusion"],"canvas_length":16,"text_config":{"vocab_size":256,)"
      R"("hidden_size":64,"intermediate_size":96,"num_hidden_layers":3,"num_attention_heads":4,"num_key_value_heads":2,)"
      R"("head_dim":16,"global_head_dim":32,"num_global_key_value_heads":1,"sliding_window":8,"num_experts":6,)"
      R"("top_k_experts":2,"moe_intermediate_size":32,"rope_parameters":{"full_attention":{"rope_type":"proportional",)"
      R"("rope_theta":1e6,"partial_rotary_factor":0.25},"sliding_attention":{"rope_theta":1e4,)" +
          sliding + "}}" + more + "}}");
}

TEST(DiffusionGemma, B26_TheFactorOfItsRopeIsRead) {
  const test::TempDir directory;
  std::filesystem::copy_file(golden_folder(kFamily) / "model.safetensors", directory / "model.safetensors");
  const auto agrees = [&](const std::string& sliding) {
    write_scaled(directory, sliding, "");
    const Tensor ids = golden_tensor(kFamily, "input_ids"), got(DType::kF32, {kEnd, kVocab});
    const Tensor want = golden_tensor(kFamily, "first_logits");
    GoldenRunner runner(directory.path(), cpu::select_kernel_set(), DType::kF32);
    runner.run(ids, {.end = kText}, got);
    runner.run(ids, canvas(kText), got);
    return testing_support::all_close(got.view().slice(kText, kText + kCanvas), want, test::float32_tolerance(want));
  };
  EXPECT_TRUE(agrees(R"("rope_type":"default")"));
  EXPECT_TRUE(agrees(R"("rope_type":"linear","factor":1)"));
  EXPECT_FALSE(agrees(R"("rope_type":"linear","factor":8)"));
}

TEST(DiffusionGemma, ScalingAndCapsThatItDoesNotHaveAreRefused) {
  const test::TempDir directory;
  const auto refusal = [&](const std::string& sliding, const std::string& more) {
    write_scaled(directory, sliding, more);
    return testing_support::refusal_of([&] { load_model(directory.path(), {.random_weights = 1}); }).sentence;
  };
  EXPECT_EQ(refusal(R"("rope_type":"default")", ""), "");
  EXPECT_NE(refusal(R"("rope_type":"linear")", "").find("has no factor"), std::string::npos);
  EXPECT_NE(refusal(R"("rope_type":"default")", R"(,"final_logit_softcapping":0)").find("final_logit_softcapping"),
            std::string::npos);
  test::write_file(
      directory / "config.json",
      R"({"architectures":["DiffusionGemmaForBlockDiffusion"],"vocab_size":256,"hidden_size":64,"intermediate_size":96,)"
      R"("num_hidden_layers":3,"num_attention_heads":4,"sliding_window":8,"num_experts":6,"top_k_experts":2,)"
      R"("moe_intermediate_size":32,"rope_theta":1e6,"rope_local_base_freq":1e4,"rope_scaling":{"factor":8}})");
  EXPECT_NE(testing_support::refusal_of([&] {
              load_model(directory.path(), {.random_weights = 1});
            }).sentence.find("rope_scaling"),
            std::string::npos);
}

TEST(DiffusionGemma, OtherGraphsAreRefusedByKey) {
  const auto refusal = [](const std::string& more) {
    const std::string begin = R"({"hidden_size":64,"vocab_size":256,"num_hidden_layers":3,"intermediate_size":96,)";
    const JsonValue root = JsonValue::parse(begin + more + "}", "config.json");
    return testing_support::refusal_of([&root] { diffusion_gemma_config(root); }).sentence;
  };
  EXPECT_NE(refusal(R"("hidden_activation":"silu")").find("hidden_activation"), std::string::npos);
  EXPECT_NE(refusal(R"("attention_bias":true)").find("attention_bias"), std::string::npos);
  EXPECT_NE(refusal(R"("use_bidirectional_attention":"vision")").find("use_bidirectional_attention"),
            std::string::npos);
  EXPECT_NE(refusal(R"("tie_word_embeddings":false)").find("tie_word_embeddings"), std::string::npos);
}

}  // namespace
}  // namespace headrace
