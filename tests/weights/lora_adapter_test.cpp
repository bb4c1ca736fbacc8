// Low-rank adapters: what they add, and that one which does not fit is an error, never the base model.
#include "headrace/weights/lora_adapter.h"

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <functional>
#include <limits>

#include "headrace/weights/checkpoint.h"
#include "headrace/weights/weight_scope.h"
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
  std::deque<Tensor> kept;  // behind views among the factors

  void add(const std::string& name, Tensor tensor) { factors.push_back({name, kept.emplace_back(std::move(tensor))}); }
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
    expect_refused(ErrorCode::kModelFile, "lora_alpha is 0, with which the adapter adds nothing",
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
       {R"("lora_bias":true)", R"("trainable_token_indices":[1])", R"("target_parameters":["x"])", R"("bias":"some")",
        R"("peft_type":"IA3")", R"("init_lora_weights":"pissa")", R"("task_type":"SEQ_CLS")"}) {
    const std::string key = std::string(more).substr(1, std::string(more).find('"', 1) - 1);
    expect_refused(ErrorCode::kUnsupported, key,
                   [more](Files& f) { f.config = str(R"({"r":2,"lora_alpha":6,)", more, "}"); });
  }
  for (const char* name : {"base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta",
                           "base_model.model.model.layers.0.self_attn.q_proj.lora_B.bias", "model.norm.weight"}) {
    expect_refused(ErrorCode::kUnsupported, name, [name](Files& f) { f.factors.push_back({name, f.a}); });
  }
}

constexpr const char* kQProj = "model.layers.0.self_attn.q_proj.weight";

// PEFT saves the base layer of a head or an embedding that is a target, trained or not.
TEST(LoraAdapter, ACopyOfTheBaseLayerTakesItsPlace) {
  Files files;
  files.factors.push_back({str(kModule, ".base_layer.weight"), files.weight});
  const Tensor merged = filled(DType::kF32, {2, 3}, {4, 2, 9, 5.5, 2, 9});
  Checkpoint equal = files.load();
  EXPECT_TRUE(testing_support::bit_equal(equal.tensor(kQProj, {2, 3}), merged));
  const Tensor bases = filled(DType::kBF16, {2, 3}, {0, 0, 0, 0, 0, 0});
  Checkpoint other = files.load({{kQProj, bases}});
  EXPECT_TRUE(testing_support::all_close(other.tensor(kQProj, {2, 3}), merged, {.abs = 0}));
  EXPECT_EQ(other.tensor(kQProj, {2, 3}).dtype(), DType::kBF16);
  expect_refused(ErrorCode::kModelFile,
                 "the copy of 'model.layers.0.self_attn.q_proj.weight' is [2, 2], expected [2, 3]", [](Files& f) {
                   f.factors.push_back({str(kModule, ".base_layer.weight"), f.b});
                 });
  expect_refused(ErrorCode::kModelFile, "the copy and factors of", [](Files& f) {
    f.add(str(kModule, ".base_layer.weight"),
          filled(DType::kF32, {2, 3}, {0, 0, 0, 0, std::numeric_limits<double>::quiet_NaN(), 0}));
  });
}

TEST(LoraAdapter, ModulesAndBiasesThatWereSavedTakeTheirPlace) {
  Files files;
  files.config = R"({"r":2,"lora_alpha":6,"bias":"all","modules_to_save":["norm","lm_head"]})";
  const Tensor norm = filled(DType::kF32, {3}, {7, 8, 9}), bias = filled(DType::kF32, {2}, {5, 6}),
               head = filled(DType::kF16, {2, 3}, {6, 5, 4, 3, 2, 1}), ones = filled(DType::kF32, {3}, {1, 1, 1}),
               zeros = Tensor::zeros(DType::kF32, {2});
  files.factors.push_back({"base_model.model.model.norm.weight", norm});
  files.factors.push_back({"base_model.model.lm_head.modules_to_save.weight", head});
  files.factors.push_back({str(kModule, ".base_layer.bias"), bias});
  files.factors.push_back({"base_model.model.model.input_layernorm.weight", ones});  // "norm" names it, too
  Checkpoint checkpoint = files.load({{kQProj, files.weight},
                                      {"model.layers.0.self_attn.q_proj.bias", zeros},
                                      {"model.norm.weight", ones},
                                      {"model.input_layernorm.weight", ones},
                                      {"lm_head.weight", files.weight}});
  EXPECT_TRUE(testing_support::bit_equal(checkpoint.tensor("model.norm.weight", {3}), norm));
  EXPECT_TRUE(testing_support::bit_equal(checkpoint.tensor("model.layers.0.self_attn.q_proj.bias", {2}), bias));
  EXPECT_TRUE(testing_support::bit_equal(checkpoint.tensor("lm_head.weight", {2, 3}),
                                         filled(DType::kF32, {2, 3}, {6, 5, 4, 3, 2, 1})));
  EXPECT_TRUE(checkpoint.is_adapted("lm_head.weight"));
  EXPECT_FALSE(checkpoint.is_adapted("model.input_layernorm.weight"));  // its copy is equal
  expect_refused(ErrorCode::kModelFile, "has no copy of 'score', which modules_to_save in adapter_config.json names",
                 [](Files& f) { f.config = R"({"r":2,"lora_alpha":6,"modules_to_save":["score"]})"; });
}

TEST(LoraAdapter, RanksAndAlphasByPatternGoBeforeTheCommonOnes) {
  for (const char* config : {R"({"r":8,"lora_alpha":1,"rank_pattern":{"x":3,"q_proj":2},"alpha_pattern":{"q_.*":6}})",
                             R"({"r":8,"lora_alpha":1,"rank_pattern":{"^model.layers.0.*":2},)"
                             R"("alpha_pattern":{"layers.0.self_attn.q_proj":6,"q_proj":99}})",
                             R"({"r":2,"lora_alpha":6,"rank_pattern":{"proj":5},"alpha_pattern":{"q":99}})"}) {
    Files files;
    files.config = config;
    Checkpoint checkpoint = files.load();
    EXPECT_TRUE(testing_support::bit_equal(checkpoint.tensor(kQProj, {2, 3}),
                                           filled(DType::kF32, {2, 3}, {4, 2, 9, 5.5, 2, 9})))
        << config;
  }
  expect_refused(ErrorCode::kModelFile, "ranks 2 and 2, expected 3",
                 [](Files& f) { f.config = R"({"r":2,"lora_alpha":6,"rank_pattern":{"q_proj":3}})"; });
  expect_refused(ErrorCode::kModelFile, "alpha_pattern.q_proj is 0",
                 [](Files& f) { f.config = R"({"r":2,"lora_alpha":6,"alpha_pattern":{"q_proj":0}})"; });
  expect_refused(ErrorCode::kModelFile, "does not compile",
                 [](Files& f) { f.config = R"({"r":2,"lora_alpha":6,"rank_pattern":{"(":3}})"; });
}

// The rows (4, 2, 9) and (5.5, 2, 9) of W + s B A are stretched to lengths of 1 and 20.
TEST(LoraAdapter, MagnitudesAreTheLengthsOfRows) {
  Files files;
  files.config = R"({"r":2,"lora_alpha":6,"use_dora":true})";
  files.add(str(kModule, ".lora_magnitude_vector"), filled(DType::kF32, {2}, {1, 20}));
  Checkpoint checkpoint = files.load();
  const double one = 1 / std::sqrt(101.0), two = 20 / std::sqrt(115.25);
  const Tensor want = filled(DType::kF32, {2, 3}, {4 * one, 2 * one, 9 * one, 5.5 * two, 2 * two, 9 * two});
  EXPECT_TRUE(testing_support::all_close(checkpoint.tensor(kQProj, {2, 3}), want, {.abs = 1e-6}));
  expect_refused(ErrorCode::kModelFile, "has no lora_magnitude_vector, use_dora in adapter_config.json is true",
                 [](Files& f) { f.config = R"({"r":2,"lora_alpha":6,"use_dora":true})"; });
  expect_refused(ErrorCode::kModelFile, "has a lora_magnitude_vector, use_dora in adapter_config.json is false",
                 [](Files& f) {
                   f.add(str(kModule, ".lora_magnitude_vector"), filled(DType::kF32, {2}, {1, 20}));
                 });
  expect_refused(ErrorCode::kModelFile,
                 "the magnitudes of 'model.layers.0.self_attn.q_proj.weight' are [3], expected [2]", [](Files& f) {
                   f.config = R"({"r":2,"lora_alpha":6,"use_dora":true})";
                   f.add(str(kModule, ".lora_magnitude_vector"), filled(DType::kF32, {3}, {1, 2, 3}));
                 });
}

// A table [rows, columns] of 2 by 3: PEFT stores A [rank, rows] and B [columns, rank].
TEST(LoraAdapter, FactorsOfAnEmbeddingAreTransposed) {
  Files files;
  const Tensor a = filled(DType::kF32, {2, 2}, {1, 0.5, 0, -1}), b = filled(DType::kF32, {3, 2}, {1, 0, 0, 1, 2, 0});
  files.factors = {{"base_model.model.model.embed_tokens.lora_embedding_A", a},
                   {"base_model.model.model.embed_tokens.lora_embedding_B", b},
                   {"base_model.model.model.embed_tokens.base_layer.weight", files.weight}};
  files.config = R"({"r":2,"lora_alpha":6,"target_modules":["embed_tokens"]})";
  Checkpoint checkpoint = files.load({{"model.embed_tokens.weight", files.weight}});
  EXPECT_TRUE(testing_support::bit_equal(checkpoint.tensor("model.embed_tokens.weight", {2, 3}),
                                         filled(DType::kF32, {2, 3}, {4, 2, 9, 5.5, 2, 9})));
  files.config = R"({"r":2,"lora_alpha":6,"use_dora":true})";
  files.add("base_model.model.model.embed_tokens.lora_magnitude_vector", filled(DType::kF32, {3}, {1, 1, 1}));
  const auto refused = testing_support::refusal_of([&] { files.load({{"model.embed_tokens.weight", files.weight}}); });
  EXPECT_EQ(refused.code, ErrorCode::kUnsupported);
  EXPECT_NE(refused.sentence.find("is an embedding under use_dora"), std::string::npos) << refused.sentence;
}

// Every wrapper's adapter on every wrapper's checkpoint. The targets are in the adapter's own names.
TEST(LoraAdapter, AnAdapterOfAnotherWrapperOfTheModelFits) {
  struct Layout {
    std::string body, head;
  };
  const Layout layouts[] = {
      {"model.", ""}, {"model.language_model.", ""}, {"language_model.model.", "language_model."}};
  for (const Layout& own : layouts)
    for (const Layout& stored : layouts) {
      SCOPED_TRACE(own.body + " on " + stored.body);
      Files files;
      const std::string module = own.body + "layers.0.self_attn.q_proj", head = own.head + "lm_head";
      files.config = str(R"({"r":2,"lora_alpha":6,"target_modules":")", module, "|", head, "\"}");
      files.factors = {{str("base_model.model.", module, ".lora_A.weight"), files.a},
                       {str("base_model.model.", module, ".lora_B.weight"), files.b},
                       {str("base_model.model.", head, ".lora_A.weight"), files.a},
                       {str("base_model.model.", head, ".lora_B.weight"), files.b},
                       {"base_model.model.model.visual.blocks.0.qkv.lora_A.weight", files.a},
                       {"base_model.model.model.visual.blocks.0.qkv.lora_B.weight", files.b}};
      const std::vector<test::NamedTensor> base = {{stored.body + "embed_tokens.weight", files.weight},
                                                   {stored.body + "layers.0.self_attn.q_proj.weight", files.weight},
                                                   {stored.head + "lm_head.weight", files.weight}};
      Checkpoint checkpoint = files.load(base);
      const Tensor merged = filled(DType::kF32, {2, 3}, {4, 2, 9, 5.5, 2, 9});
      for (const size_t i : {1, 2})
        EXPECT_TRUE(testing_support::bit_equal(checkpoint.tensor(base[i].name, {2, 3}), merged));
      EXPECT_FALSE(checkpoint.is_adapted(base[0].name));
      files.factors.erase(files.factors.begin() + 2, files.factors.begin() + 4);
      Checkpoint lacking = files.load(base);
      EXPECT_NE(testing_support::refusal_of([&] {
                  lacking.tensor(base[2].name, {2, 3});
                }).sentence.find("has no factors of '" + base[2].name),
                std::string::npos);
    }
}

TEST(LoraAdapter, OneThatChangesAnotherPartAloneIsRefused) {
  expect_refused(ErrorCode::kModelFile, "changes no tensor that the model reads", [](Files& f) {
    f.factors = {{"base_model.model.visual.merger.lora_A.weight", f.a},
                 {"base_model.model.visual.merger.lora_B.weight", f.b}};
  });
}

// A tied head is stored once; PEFT saves both copies when it is asked to.
TEST(LoraAdapter, ATiedHeadIsRefusedUnlessItsCopyEqualsTheEmbedding) {
  Files files;
  const std::vector<test::NamedTensor> base = {{kQProj, files.weight}, {"model.embed_tokens.weight", files.weight}};
  files.factors.push_back({"base_model.model.lm_head.weight", files.weight});
  files.factors.push_back({"base_model.model.model.embed_tokens.weight", files.weight});
  Checkpoint checkpoint = files.load(base);
  EXPECT_FALSE(checkpoint.is_adapted("model.embed_tokens.weight"));
  EXPECT_TRUE(checkpoint.is_adapted(kQProj));
  const Tensor other = Tensor::zeros(DType::kF32, {2, 3});
  files.factors[2].tensor = other;
  const auto refused = testing_support::refusal_of([&] { files.load(base); });
  EXPECT_EQ(refused.code, ErrorCode::kUnsupported);
  EXPECT_NE(refused.sentence.find("changes 'lm_head.weight', which the checkpoint ties to its embedding"),
            std::string::npos)
      << refused.sentence;
  files.factors.erase(files.factors.begin() + 2);
  files.factors.back().tensor = other;
  Checkpoint changed = files.load(base);
  const auto tied = testing_support::refusal_of([&] { check_tied_head(find_text_weights(changed), {2, 3}); });
  EXPECT_EQ(tied.code, ErrorCode::kUnsupported);
  EXPECT_NE(tied.sentence.find("the adapter changes 'model.embed_tokens.weight', which tie_word_embeddings ties"),
            std::string::npos)
      << tied.sentence;
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

TEST(LoraAdapter, FactorsOfIntegersAreRefused) {
  for (const auto& [dtype, name] : {std::pair{DType::kI32, "I32"}, {DType::kI64, "I64"}, {DType::kU8, "U8"}}) {
    expect_refused(ErrorCode::kModelFile,
                   str("adapter_model.safetensors: tensor '", kModule, ".lora_A.weight' has dtype ", name,
                       ", expected F32, BF16, F16 or F64"),
                   [stored = dtype](Files& f) {
                     f.factors[0].tensor = f.kept.emplace_back(Tensor::zeros(stored, {2, 3}));
                   });
  }
  Files files;
  files.factors[0].tensor = files.kept.emplace_back(filled(DType::kF64, {2, 3}, {1, 0, 2, 0, 1, 0}));
  files.load();
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
