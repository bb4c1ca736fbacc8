// Low-rank adapters: what they add, and that one which does not fit is an error, never the base model.
#include "headrace/weights/lora_adapter.h"

#include <gtest/gtest.h>

#include <functional>

#include "headrace/weights/checkpoint.h"
#include "support/all_close.h"
#include "support/safetensors_writer.h"

namespace headrace {
namespace {

using test::TempDir;
using test::write_file;
using test::write_safetensors;

constexpr const char* kConfig = R"({"peft_type":"LORA","r":2,"lora_alpha":6,"target_modules":["q_proj"]})";
constexpr const char* kModule = "base_model.model.model.layers.0.self_attn.q_proj";

Tensor filled(DType dtype, const Shape& shape, const std::vector<double>& values) {
  Tensor out(dtype, shape);
  for (int64_t i = 0; i < out.numel(); ++i) set_element(out, i, values[static_cast<size_t>(i)]);
  return out;
}

// A base weight of [2, 3] and factors of rank 2 with alpha 6: W + 3 B A.
struct Files {
  TempDir base, adapter;
  std::string config = kConfig;
  std::vector<test::NamedTensor> factors;
  Tensor a = filled(DType::kF32, {2, 3}, {1, 0, 2, 0, 1, 0}), b = filled(DType::kF32, {2, 2}, {1, 0, 0.5, -1});
  Tensor weight = filled(DType::kF32, {2, 3}, {1, 2, 3, 4, 5, 6});

  Files() { factors = {{str(kModule, ".lora_A.weight"), a}, {str(kModule, ".lora_B.weight"), b}}; }
  Checkpoint load() {
    write_safetensors(base / "model.safetensors", {{"model.layers.0.self_attn.q_proj.weight", weight}});
    write_file(adapter / "adapter_config.json", config);
    write_safetensors(adapter / "adapter_model.safetensors", factors);
    Checkpoint checkpoint = Checkpoint::open(base.path());
    checkpoint.attach(LoraAdapter::open(adapter.path()), 1);
    return checkpoint;
  }
};

void expect_refused(ErrorCode code, std::string_view expected, const std::function<void(Files&)>& change) {
  Files files;
  change(files);
  try {
    files.load();
    ADD_FAILURE() << "no error, expected: " << expected;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
  }
}

TEST(LoraAdapter, AddsAlphaOverRankTimesBA) {
  Files files;
  Checkpoint checkpoint = files.load();
  const TensorView got = checkpoint.tensor("model.layers.0.self_attn.q_proj.weight", {2, 3});
  EXPECT_TRUE(testing_support::bit_equal(got, filled(DType::kF32, {2, 3}, {4, 2, 9, 5.5, 2, 9})));
  EXPECT_EQ(got.data(), checkpoint.tensor("model.layers.0.self_attn.q_proj.weight", {2, 3}).data());  // merged once
  checkpoint.require_all_used();
}

TEST(LoraAdapter, RankStabilisedOnesDivideByTheRoot) {
  Files files;
  files.config = R"({"r":2,"lora_alpha":1.4142135623730951,"use_rslora":true})";
  Checkpoint checkpoint = files.load();
  const TensorView got = checkpoint.tensor("model.layers.0.self_attn.q_proj.weight", {2, 3});
  EXPECT_TRUE(testing_support::all_close(got, filled(DType::kF32, {2, 3}, {2, 2, 5, 4.5, 4, 7}), {.abs = 1e-6}));
}

TEST(LoraAdapter, ABfloat16WeightStaysOne) {
  Files files;
  files.weight = filled(DType::kBF16, {2, 3}, {1, 2, 3, 4, 5, 6});
  Checkpoint checkpoint = files.load();
  EXPECT_EQ(checkpoint.tensor("model.layers.0.self_attn.q_proj.weight", {2, 3}).dtype(), DType::kBF16);
}

TEST(LoraAdapter, B28_FactorsThatDoNotFitTheBaseAreRefused) {
  expect_refused(ErrorCode::kModelFile, "'model.layers.0.self_attn.q_proj.weight' make [2, 3], expected [2, 4]",
                 [](Files& f) {
                   f.weight = Tensor::zeros(DType::kF32, {2, 4});
                 });
  expect_refused(ErrorCode::kModelFile, "'model.layers.9.mlp.up_proj.weight' is not in the checkpoint", [](Files& f) {
    f.factors.push_back({"base_model.model.model.layers.9.mlp.up_proj.lora_A.weight", f.a});
    f.factors.push_back({"base_model.model.model.layers.9.mlp.up_proj.lora_B.weight", f.b});
  });
}

TEST(LoraAdapter, FactorsThatDoNotFitEachOtherAreRefused) {
  expect_refused(ErrorCode::kModelFile, "has no lora_B", [](Files& f) { f.factors.pop_back(); });
  expect_refused(ErrorCode::kModelFile, "ranks 2 and 2, expected 4",
                 [](Files& f) { f.config = R"({"r":4,"lora_alpha":6})"; });
  expect_refused(ErrorCode::kModelFile, "under a second name", [](Files& f) {
    f.factors.push_back({str(kModule, ".lora_A.default.weight"), f.a});
  });
  expect_refused(ErrorCode::kModelFile, "has no factors", [](Files& f) { f.factors.clear(); });
}

TEST(LoraAdapter, B28_WhatIsNotBuiltIsRefusedByName) {
  for (const char* more : {R"("use_dora":true)", R"("modules_to_save":["lm_head"])", R"("rank_pattern":{"q":4})",
                           R"("bias":"all")", R"("peft_type":"IA3")", R"("init_lora_weights":"pissa")"}) {
    const std::string key = std::string(more).substr(1, std::string(more).find('"', 1) - 1);
    expect_refused(ErrorCode::kUnsupported, key,
                   [more](Files& f) { f.config = str(R"({"r":2,"lora_alpha":6,)", more, "}"); });
  }
  expect_refused(ErrorCode::kUnsupported, "lora_embedding_A", [](Files& f) {
    f.factors.push_back({"base_model.model.model.embed_tokens.lora_embedding_A", f.a});
  });
}

TEST(LoraAdapter, B28_MissingFilesAndRandomWeightsAreRefused) {
  const TempDir empty;
  EXPECT_THROW(LoraAdapter::open(empty.path()), Error);
  write_file(empty / "adapter_config.json", kConfig);
  EXPECT_THROW(LoraAdapter::open(empty.path()), Error);
  Files files;
  files.load();
  Checkpoint random = Checkpoint::random(1, 1);
  EXPECT_THROW(random.attach(LoraAdapter::open(files.adapter.path()), 1), Error);
}

}  // namespace
}  // namespace headrace
