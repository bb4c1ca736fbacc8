// Low-rank adapters: what they add, and that one which does not fit is an error, never the base model.
#include "headrace/weights/lora_adapter.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "headrace/weights/checkpoint.h"
#include "support/all_close.h"
#include "support/refusal.h"
#include "support/safetensors_writer.h"

namespace headrace {
namespace {

using test::TempDir;
using test::write_file;
using test::write_safetensors;

constexpr const char* kAdapterConfig = R"({"peft_type":"LORA","r":2,"lora_alpha":6,"target_modules":["q_proj"]})";
constexpr const char* kModule = "base_model.model.model.layers.0.self_attn.q_proj";

Tensor filled(DType dtype, const Shape& shape, const std::vector<double>& values) {
  Tensor out(dtype, shape);
  for (int64_t i = 0; i < out.numel(); ++i) set_element(out, i, values[static_cast<size_t>(i)]);
  return out;
}

// A base weight of [2, 3] and factors of rank 2 with alpha 6: W + 3 B A.
struct Files {
  TempDir base, adapter;
  std::string config = kAdapterConfig;
  std::vector<test::NamedTensor> factors;
  Tensor a = filled(DType::kF32, {2, 3}, {1, 0, 2, 0, 1, 0}), b = filled(DType::kF32, {2, 2}, {1, 0, 0.5, -1});
  Tensor weight = filled(DType::kF32, {2, 3}, {1, 2, 3, 4, 5, 6});

  Files() { factors = {{str(kModule, ".lora_A.weight"), a}, {str(kModule, ".lora_B.weight"), b}}; }
  Checkpoint load() { return load({{"model.layers.0.self_attn.q_proj.weight", weight}}); }
  Checkpoint load(const std::vector<test::NamedTensor>& weights) {
    write_safetensors(base / "model.safetensors", weights);
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
    Checkpoint checkpoint = files.load();
    checkpoint.tensor("model.layers.0.self_attn.q_proj.weight", files.weight.shape());
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

// It was accepted, and the base model's tokens came without a word.
TEST(LoraAdapter, B28_OneThatAddsNothingIsRefused) {
  for (const char* more : {"", R"(,"use_rslora":true)"}) {
    expect_refused(ErrorCode::kModelFile, "has lora_alpha 0, with which the adapter adds nothing",
                   [more](Files& f) { f.config = str(R"({"r":2,"lora_alpha":0)", more, "}"); });
  }
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
  for (const char* more :
       {R"("use_dora":true)", R"("modules_to_save":["lm_head"])", R"("rank_pattern":{"q":4})", R"("bias":"all")",
        R"("peft_type":"IA3")", R"("init_lora_weights":"pissa")", R"("task_type":"SEQ_CLS")"}) {
    const std::string key = std::string(more).substr(1, std::string(more).find('"', 1) - 1);
    expect_refused(ErrorCode::kUnsupported, key,
                   [more](Files& f) { f.config = str(R"({"r":2,"lora_alpha":6,)", more, "}"); });
  }
  expect_refused(ErrorCode::kUnsupported, "lora_embedding_A", [](Files& f) {
    f.factors.push_back({"base_model.model.model.embed_tokens.lora_embedding_A", f.a});
  });
}

// Loads a base of these weights, all [2, 3], under an adapter of the first one alone whose config says `more`.
std::string refusal_of_the_rest(const std::string& more, const std::vector<std::string>& modules) {
  Files files;
  files.config = str(R"({"r":2,"lora_alpha":6,)", more, "}");
  const std::string& adapted = modules.front();
  files.factors = {{str("base_model.model.", adapted, ".lora_A.weight"), files.a},
                   {str("base_model.model.", adapted, ".lora_B.weight"), files.b}};
  std::vector<test::NamedTensor> base;
  for (const std::string& module : modules) base.push_back({module + ".weight", files.weight});
  base.push_back({"model.layers.0.q_proj.bias", files.b});  // no linear layer's weight
  return testing_support::refusal_of([&] {
           Checkpoint checkpoint = files.load(base);
           for (const std::string& module : modules) checkpoint.tensor(module + ".weight", {2, 3});
           checkpoint.tensor("model.layers.0.q_proj.bias", {2, 2});
         })
      .sentence;
}

// Layer 0's q_proj alone was merged, and the base model's other weights were run without a word.
TEST(LoraAdapter, B28_AWeightThatTheConfigNamesAndTheFileLacksIsRefused) {
  const std::string one = "model.layers.0.q_proj", two = "model.layers.1.q_proj", down = "model.layers.0.down_proj";
  const auto lacks = [](const std::string& sentence, const std::string& module) {
    return sentence.ends_with(str("adapter_model.safetensors: has no factors of '", module,
                                  ".weight', which target_modules in adapter_config.json names"));
  };
  for (const char* names : {R"("target_modules":["q_proj","v_proj"])", R"("target_modules":".*\\.q_proj")",
                            R"("target_modules":"^(?!.*vision).*\\.(q|v)_proj$")", R"("target_modules":"all-linear")",
                            R"("target_modules":["q_proj"],"layers_to_transform":[1,0])",
                            R"("target_modules":["q_proj"],"layers_to_transform":1,"layers_pattern":"layers")",
                            R"("target_modules":["q_proj"],"exclude_modules":["layers.2.q_proj"])"}) {
    EXPECT_TRUE(lacks(refusal_of_the_rest(names, {one, two}), two)) << names;
  }
  EXPECT_TRUE(lacks(refusal_of_the_rest(R"("target_modules":["q_proj","down_proj"])", {one, down}), down));
  EXPECT_EQ(refusal_of_the_rest(R"("target_modules":["q_proj"])", {one, down}), "");
}

TEST(LoraAdapter, AWeightThatTheConfigLeavesOutIsTheBases) {
  const std::string one = "model.layers.0.q_proj", two = "model.layers.1.q_proj";
  for (const char* names : {R"("target_modules":["0.q_proj"])", R"("target_modules":"model\\.layers\\.0.*")",
                            R"("target_modules":".*q_pro")",  // the whole name, as Python's fullmatch
                            R"("target_modules":["q_proj"],"layers_to_transform":[0])",
                            R"("target_modules":["q_proj"],"layers_to_transform":1,"layers_pattern":["blocks"])",
                            R"("target_modules":["q_proj"],"exclude_modules":["1.q_proj"])",
                            R"("target_modules":["q_proj"],"exclude_modules":".*\\.1\\..*")",
                            R"("target_modules":["proj"])", R"("target_modules":null)", R"("exclude_modules":[])"}) {
    EXPECT_EQ(refusal_of_the_rest(names, {one, two}), "") << names;
  }
  EXPECT_EQ(refusal_of_the_rest(R"("target_modules":"all-linear")",
                                {one, "lm_head", "model.embed_tokens", "model.layers.0.mlp.gate"}),
            "");
  EXPECT_NE(refusal_of_the_rest(R"("target_modules":"all-linear")", {one, "model.layers.0.mlp.gate_proj"}), "");
}

TEST(LoraAdapter, AnAdapterOfSomeExpertsIsOneOfAll) {
  const std::string targets = R"("target_modules":["up_proj","q_proj"])";
  const std::string first = "model.layers.0.mlp.experts.0.up_proj", second = "model.layers.0.mlp.experts.1.up_proj";
  EXPECT_NE(refusal_of_the_rest(targets, {first, second}), "");
  EXPECT_EQ(refusal_of_the_rest(targets, {"model.layers.0.q_proj", first, second}), "") << "which lay together";
}

TEST(LoraAdapter, ATargetThatIsNoRegularExpressionIsRefused) {
  expect_refused(ErrorCode::kModelFile, "target_modules is '(', expected a regular expression",
                 [](Files& f) { f.config = R"({"r":2,"lora_alpha":6,"target_modules":"("})"; });
  expect_refused(ErrorCode::kModelFile, "target_modules",
                 [](Files& f) { f.config = R"({"r":2,"lora_alpha":6,"target_modules":7})"; });
}

// They were merged, and the sampler called the logits that came of them a bug of its own.
TEST(LoraAdapter, B28_FactorsThatAreNoNumbersAreRefusedByTheTensorsName) {
  const double inf = std::numeric_limits<double>::infinity();
  expect_refused(ErrorCode::kModelFile, "q_proj.lora_A.weight' holds nan at element 4, expected finite numbers",
                 [](Files& f) { set_element(f.a, 4, std::nan("")); });
  expect_refused(ErrorCode::kModelFile, "q_proj.lora_B.weight' holds -inf at element 3, expected finite numbers",
                 [inf](Files& f) { set_element(f.b, 3, -inf); });
  expect_refused(ErrorCode::kModelFile, "the factors of 'model.layers.0.self_attn.q_proj.weight' add more than float32",
                 [](Files& f) {
                   set_element(f.a, 0, 1e38);
                   set_element(f.b, 0, 1e38);
                 });
}

TEST(LoraAdapter, B28_MissingFilesAndRandomWeightsAreRefused) {
  const TempDir empty;
  EXPECT_THROW(LoraAdapter::open(empty.path()), Error);
  write_file(empty / "adapter_config.json", kAdapterConfig);
  EXPECT_THROW(LoraAdapter::open(empty.path()), Error);
  Files files;
  files.load();
  Checkpoint random = Checkpoint::random(1, 1);
  EXPECT_THROW(random.attach(LoraAdapter::open(files.adapter.path()), 1), Error);
}

}  // namespace
}  // namespace headrace
