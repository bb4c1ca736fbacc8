// A LoRA adapter against peft, and a soft token against the token it stands for.
#include <gtest/gtest.h>

#include <cstring>

#include "headrace/ops/cpu/dispatch.h"
#include "headrace/ops/cuda_module.h"
#include "headrace/weights/safetensors_file.h"
#include "models/golden_runner.h"
#include "support/device_mirror.h"
#include "support/gpu.h"
#include "support/refusal.h"
#include "support/safetensors_writer.h"

namespace headrace {
namespace {

using test::golden_folder;
using test::golden_tensor;
using test::GoldenRunner;

// The golden checkpoint in float32, so that merged weights are not rounded.
void write_float32(const std::string& family, const test::TempDir& directory) {
  std::filesystem::copy_file(golden_folder(family) / "config.json", directory / "config.json");
  const SafetensorsFile file(golden_folder(family) / "model.safetensors");
  std::vector<Tensor> owned;
  std::vector<test::NamedTensor> tensors;
  for (const SafetensorsEntry& entry : file.entries()) {
    const Shape shape(std::vector<int64_t>(entry.shape.begin(), entry.shape.end()));
    const Tensor stored(*entry.dtype->dtype, shape);
    std::memcpy(stored.data(), file.data(entry), static_cast<size_t>(stored.bytes()));
    Tensor wide(DType::kF32, shape);
    for (int64_t i = 0; i < wide.numel(); ++i) set_element(wide, i, element_as_double(stored, i));
    tensors.push_back({entry.name, wide});
    owned.push_back(std::move(wide));
  }
  test::write_safetensors(directory / "model.safetensors", tensors);
}

Tensor one_pass(GoldenRunner& runner, const Tensor& ids, const Shape& shape, std::optional<TokenMerge> merge = {}) {
  Tensor logits(DType::kF32, shape);
  runner.run(ids, {.end = static_cast<int32_t>(ids.numel()), .kind = KeySpan::Kind::kFull, .token_merge = merge},
             logits);
  return logits;
}

void expect_the_logits_of_peft(const OpSet& ops, DeviceRuntime& runtime) {
  SCOPED_TRACE(ops.name);
  const test::TempDir directory;
  write_float32("dream", directory);
  const Tensor ids = golden_tensor("dream_lora", "input_ids"), want = golden_tensor("dream_lora", "logits");
  GoldenRunner runner(directory.path(), ops, DType::kF32, Determinism::kFast, golden_folder("dream_lora"), runtime);
  EXPECT_TRUE(testing_support::all_close(one_pass(runner, ids, want.shape()), want, test::float32_tolerance(want)));
}

TEST(Adapter, LogitsAgreeWithPeft) {
  expect_the_logits_of_peft(cpu::select_kernel_set(), cpu_runtime());
  const Tensor base = golden_tensor("dream", "logits"), want = golden_tensor("dream_lora", "logits");
  EXPECT_FALSE(testing_support::all_close(base, want, test::float32_tolerance(want))) << "the adapter changes nothing";
}

TEST(Adapter, CudaLogitsAgreeWithPeft) {
  if (testing_support::mirrored_cuda_ops() == nullptr) GTEST_SKIP() << "no CUDA device";
  for (const std::string_view set : testing_support::kCudaSets) {
    expect_the_logits_of_peft(cuda_module().ops(set), testing_support::gpu());
  }
}

TEST(Adapter, OneOfAnotherModelIsAnErrorAndNoBaseModel) {
  try {
    load_model(golden_folder("llada"), {.adapter = golden_folder("dream_lora")});
    FAIL() << "nothing was refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kModelFile);  // exit status 3
    EXPECT_NE(std::string(error.what()).find("adapter_model.safetensors"), std::string::npos) << error.what();
  }
}

// Its config names q_proj, v_proj and down_proj of both layers.
TEST(Adapter, OneThatLacksALayerIsAnErrorAndNoHalfAdaptedModel) {
  const test::TempDir directory;
  std::filesystem::copy_file(golden_folder("dream_lora") / "adapter_config.json", directory / "adapter_config.json");
  const SafetensorsFile file(golden_folder("dream_lora") / "adapter_model.safetensors");
  std::vector<Tensor> owned;
  std::vector<test::NamedTensor> kept;
  for (const SafetensorsEntry& entry : file.entries()) {
    if (entry.name.find("layers.0.self_attn.q_proj") == std::string::npos) continue;
    const Shape shape(std::vector<int64_t>(entry.shape.begin(), entry.shape.end()));
    Tensor& copy = owned.emplace_back(*entry.dtype->dtype, shape);
    std::memcpy(copy.data(), file.data(entry), static_cast<size_t>(copy.bytes()));
    kept.push_back({entry.name, copy});
  }
  test::write_safetensors(directory / "adapter_model.safetensors", kept);
  const auto refused =
      testing_support::refusal_of([&] { load_model(golden_folder("dream"), {.adapter = directory.path()}); });
  EXPECT_EQ(refused.code, ErrorCode::kModelFile);
  EXPECT_TRUE(refused.sentence.ends_with(
      "has no factors of 'model.layers.0.self_attn.v_proj.weight', which target_modules in adapter_config.json names"))
      << refused.sentence;
}

TEST(Adapter, TheLogNamesIt) {
  std::vector<std::string> infos;
  load_model(golden_folder("dream"),
             {.adapter = golden_folder("dream_lora"), .log = [&](LogLevel level, std::string_view message) {
                if (level == LogLevel::kInfo) infos.emplace_back(message);
              }});
  const std::string file = (golden_folder("dream_lora") / "adapter_model.safetensors").string();
  EXPECT_EQ(infos, (std::vector<std::string>{file + ": 6 weights are adapted, rank 4"}));
}

void expect_rows_of_one_certain_token_to_be_that_token(const OpSet& ops, DeviceRuntime& runtime) {
  SCOPED_TRACE(ops.name);
  const Tensor ids = golden_tensor("dream", "input_ids"), want = golden_tensor("dream", "logits");
  const int64_t tokens = ids.numel();
  const Tensor masked(DType::kI32, {tokens}), mask = Tensor::zeros(DType::kU8, {tokens});
  const Tensor merge_ids = Tensor::zeros(DType::kI64, {tokens, 1}), probs = Tensor::zeros(DType::kF32, {tokens, 1});
  const Tensor residual = Tensor::zeros(DType::kF32, {tokens});
  for (int64_t t = 0; t < tokens; ++t) {
    const bool soft = t % 3 == 1;
    set_element(masked, t, soft ? 250 : element_as_double(ids, t));
    set_element(mask, t, soft ? 1 : 0);
    set_element(merge_ids, t, element_as_double(ids, t));
    set_element(probs, t, 1);
  }
  GoldenRunner runner(golden_folder("dream"), ops, DType::kF32, Determinism::kFast, std::nullopt, runtime);
  const TokenMerge merge{mask, merge_ids, probs, residual, 250};
  EXPECT_TRUE(
      testing_support::all_close(one_pass(runner, masked, want.shape(), merge), want, test::float32_tolerance(want)));
  EXPECT_FALSE(testing_support::all_close(one_pass(runner, masked, want.shape()), want, test::float32_tolerance(want)));
}

TEST(TokenMerge, ARowThatIsOneTokenForCertainIsThatToken) {
  expect_rows_of_one_certain_token_to_be_that_token(cpu::select_kernel_set(), cpu_runtime());
}

TEST(TokenMerge, ARowThatIsOneTokenForCertainIsThatTokenToCuda) {
  if (testing_support::mirrored_cuda_ops() == nullptr) GTEST_SKIP() << "no CUDA device";
  for (const std::string_view set : testing_support::kCudaSets) {
    expect_rows_of_one_certain_token_to_be_that_token(cuda_module().ops(set), testing_support::gpu());
  }
}

}  // namespace
}  // namespace headrace
