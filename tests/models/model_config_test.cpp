// What config.json says, in its old and its new spelling, and what is refused before anything is loaded.
#include "headrace/models/model_config.h"

#include <gtest/gtest.h>

#include "headrace/models/families.h"
#include "support/refusal.h"

namespace headrace {
namespace {

// A config with `more` members behind the required ones.
JsonValue config_with(const std::string& more) {
  return JsonValue::parse(R"({"hidden_size":96,"vocab_size":512,"num_hidden_layers":8,"num_attention_heads":4,)"
                          R"("num_key_value_heads":4,"intermediate_size":160)" +
                              (more.empty() ? "" : "," + more) + "}",
                          "config.json");
}

// A class that rotates a share of each head.
ModelConfig common(const std::string& more) { return common_config(config_with(more), {.partial_rotary = 1}); }

std::string refusal(const std::function<void()>& call) { return testing_support::refusal_of(call).sentence; }

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(ModelConfig, B26_RotaryIsReadFromTheOldAndTheNewSpelling) {
  for (const char* form :
       {R"("rope_theta":5e5,"rope_scaling":{"type":"linear","factor":8},"partial_rotary_factor":0.5)",
        R"("rope_parameters":{"rope_type":"linear","rope_theta":5e5,"factor":8,"partial_rotary_factor":0.5})"}) {
    const ModelConfig c = common(form);
    EXPECT_EQ(c.rotary.theta, 5e5);
    EXPECT_EQ(c.rotary.type, "linear");
    EXPECT_EQ(c.rotary.factor, 8);
    EXPECT_EQ(c.rotary.partial_rotary_factor, 0.5);
  }
  EXPECT_EQ(common(R"("rope_theta":1e6,"rope_scaling":null)").rotary.type, "default");
}

// A rope_scaling written by hand into a file of the new spelling would go unread.
TEST(ModelConfig, B26_BothSpellingsOfRotaryAreReadWhenTheyAgreeAndRefusedWhenNot) {
  const std::string v5 = R"("rope_parameters":{"rope_type":"default","rope_theta":1e6},"rope_scaling":)";
  const std::string yarn = R"({"rope_type":"yarn","rope_theta":1e6,"factor":4,"original_max_position_embeddings":64})";
  const auto refused = [](const std::string& more) { return refusal([&] { common(more); }); };
  EXPECT_TRUE(contains(refused(v5 + yarn), "rope_scaling and rope_parameters differ"));
  EXPECT_TRUE(contains(refused(v5 + R"({"type":"default","rope_theta":1e4})"), "differ"));
  EXPECT_EQ(refused(v5 + R"({"type":"default"})"), "");
  EXPECT_EQ(refused(v5 + "null"), "");
  EXPECT_EQ(refused(R"("rope_parameters":)" + yarn + R"(,"rope_scaling":)" + yarn), "");
}

TEST(ModelConfig, TheOriginalContextBesideRopeScalingGoesBeforeTheOneInside) {
  const std::string yarn = R"("rope_theta":1e6,"rope_scaling":{"type":"yarn","factor":4)";
  const auto original = [](const std::string& more) { return common(more).rotary.original_max_position; };
  EXPECT_EQ(original(yarn + R"(,"original_max_position_embeddings":64})"), 64);
  EXPECT_EQ(original(yarn + R"(,"original_max_position_embeddings":64},"original_max_position_embeddings":32)"), 32);
}

TEST(ModelConfig, SectionsOfRotaryAreReadFromBothSpellings) {
  const auto sections = [](const std::string& more) { return common(more).rotary.sections; };
  EXPECT_EQ(sections(R"("rope_scaling":{"type":"default","mrope_section":[16,24,24]})"), (RotarySections{16, 24, 24}));
  EXPECT_EQ(sections(R"("rope_parameters":{"mrope_section":[11,11,10],"mrope_interleaved":true})"),
            (RotarySections{11, 11, 10, RotarySections::Layout::kInterleaved}));
  EXPECT_EQ(sections(R"("rope_parameters":{"rope_theta":1e7})"), std::nullopt);
  for (const char* bad : {"[11,11]", "[16,8,4,4]", "[11,-1,10]", "[11.5,11,10]", "11"})
    EXPECT_THROW(sections(str(R"("rope_parameters":{"mrope_section":)", bad, "}")), Error) << bad;
  EXPECT_TRUE(contains(refusal([&] { sections(R"("rope_parameters":{"mrope_section":[11,11]})"); }),
                       "mrope_section has 2 entries, expected those of time, height and width"));
}

TEST(ModelConfig, HybridsRotateAQuarterOfEachHeadUnlessTheyState) {
  const std::string experts = R"(,"num_experts":8,"num_experts_per_tok":3,"moe_intermediate_size":48)";
  EXPECT_EQ(qwen3_5_config(config_with(R"("rope_theta":1e7)")).rotary.partial_rotary_factor, 0.25);
  EXPECT_EQ(qwen3_next_config(config_with(R"("rope_theta":1e7)" + experts)).rotary.partial_rotary_factor, 0.25);
  EXPECT_EQ(qwen3_5_config(config_with(R"("partial_rotary_factor":0.5)")).rotary.partial_rotary_factor, 0.5);
  EXPECT_FALSE(qwen3_config(config_with(R"("rope_theta":1e6)")).rotary.partial_rotary_factor);
}

TEST(ModelConfig, AGgufFilesOwnMembersAreRead) {
  const std::string experts = R"("num_experts":8,"num_experts_per_tok":2)";
  using Layout = GatedDeltaNetConfig::Layout;
  EXPECT_EQ(qwen3_next_config(config_with(experts)).gdn.layout, Layout::kGrouped);
  EXPECT_EQ(qwen3_next_config(config_with(experts + R"(,"linear_projections":"separate")")).gdn.layout,
            Layout::kSeparate);
  const ModelConfig divided =
      common(R"("rope_parameters":{"rope_type":"divided","rope_theta":5e5,"divisors":[1,2.5]})");
  EXPECT_EQ(divided.rotary.divisors, (std::vector<double>{1, 2.5}));
}

TEST(ModelConfig, HybridsHaveOneFullLayerInFourUnlessTheyState) {
  const ModelConfig c = qwen3_5_config(config_with(""));
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(c.layer_types[i] == LayerType::kFullAttention, i % 4 == 3) << "layer " << i;
  const ModelConfig every_second = qwen3_5_config(config_with(R"("full_attention_interval":2)"));
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(every_second.layer_types[i] == LayerType::kFullAttention, i % 2 == 1);
}

TEST(ModelConfig, HeadsMayBeWiderThanTheirShareOfHidden) {
  EXPECT_EQ(common("").attention.head_dim, 24);
  EXPECT_EQ(common(R"("head_dim":null)").attention.head_dim, 24);
  EXPECT_EQ(common(R"("head_dim":32)").attention.head_dim, 32);
}

TEST(ModelConfig, TheTextPartDecidesAboutATiedHeadThenTheTop) {
  const std::string inner =
      R"("text_config":{"hidden_size":96,"vocab_size":512,"num_hidden_layers":1,"num_attention_heads":32)";
  const auto tied = [](const std::string& text) {
    return qwen2_config(JsonValue::parse(text, "config.json")).tied_head;
  };
  EXPECT_TRUE(tied("{" + inner + R"(},"tie_word_embeddings":true})"));
  EXPECT_FALSE(tied("{" + inner + R"(,"tie_word_embeddings":false},"tie_word_embeddings":true})"));
  EXPECT_FALSE(tied("{" + inner + "}}"));
}

TEST(ModelConfig, ExpertsAreInEveryStepthLayerThatIsNotListedAsDense) {
  const ModelConfig c = qwen3_moe_config(config_with(
      R"("num_experts":8,"num_experts_per_tok":3,"moe_intermediate_size":48,"decoder_sparse_step":2,"mlp_only_layers":[3])"));
  EXPECT_EQ(c.moe_layers, (std::vector<bool>{false, true, false, false, false, true, false, true}));
  EXPECT_EQ(c.moe.router.norm_topk_prob, ExpertRouterConfig::Renormalise::kNo);  // the class default of Qwen3-MoE
}

TEST(ModelConfig, EndTokensOfBothFilesCount) {
  ModelDescription model{.config = config_with(R"("eos_token_id":7)")};
  EXPECT_EQ(eos_ids_of(model, 512), std::vector<int32_t>{7});
  model.generation = JsonValue::parse(R"({"eos_token_id":[9,7]})", "generation_config.json");
  EXPECT_EQ(eos_ids_of(model, 512), (std::vector<int32_t>{7, 9}));
  // A fine-tune with a smaller vocabulary keeps the file of its base model.
  std::vector<std::string> warnings;
  const LogCallback log = [&warnings](LogLevel, std::string_view text) { warnings.emplace_back(text); };
  EXPECT_EQ(eos_ids_of(model, 8, {}, log), std::vector<int32_t>{7});
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_TRUE(
      warnings[0].ends_with("generation_config.json: eos_token_id[0] is 9, expected 0 to 7; this end token is "
                            "ignored"))
      << warnings[0];
  model.config = config_with(R"("eos_token_id":-1)");
  EXPECT_EQ(eos_ids_of(model, 512), (std::vector<int32_t>{7, 9}));
}

TEST(ModelConfig, RefusalsNameTheKey) {
  const auto refused = [](const std::string& more) {
    return refusal([&] {
      ModelConfig c = llama_config(config_with(more));
      c.architecture = "LlamaForCausalLM";
      check(c);
    });
  };
  EXPECT_TRUE(contains(refused(R"("num_key_value_heads":3)"), "num_key_value_heads"));
  EXPECT_TRUE(contains(refused(R"("hidden_act":"gelu")"), "hidden_act"));
  EXPECT_TRUE(contains(refused(R"("rms_norm_eps":-1)"), "rms_norm_eps"));
  EXPECT_TRUE(contains(refused(R"("use_sliding_window":true)"), "use_sliding_window"));
  EXPECT_TRUE(contains(refused(R"("layer_types":["full_attention"])"), "layer_types"));
  EXPECT_TRUE(contains(refused(R"("mlp_bias":true)"), "mlp_bias"));
  EXPECT_TRUE(contains(refused(R"("dtype":"int8")"), "int8"));
  EXPECT_TRUE(contains(refused(R"("rope_scaling":{"type":"yarn","mscale":"x"})"), "mscale"));
  std::string linear = R"("layer_types":["linear_attention")";
  for (int i = 0; i < 7; ++i) linear += R"(,"full_attention")";
  EXPECT_TRUE(contains(refused(linear + "]"), "LlamaForCausalLM does not have"));
  EXPECT_EQ(refused(""), "");
}

TEST(ModelConfig, ADenseLayerNeedsAnIntermediateSize) {
  const JsonValue root = JsonValue::parse(R"({"num_hidden_layers":1,"intermediate_size":0})", "config.json");
  EXPECT_TRUE(contains(refusal([&] { check(llama_config(root)); }), "intermediate_size"));
}

// Values of the configuration classes of transformers 5.17 and of LLaDA2's own, for a file that states nothing.
TEST(ModelConfig, FieldsThatAFileLeavesOutAreTheClasss) {
  struct Row {
    ModelConfig (*read)(const JsonValue&);
    int64_t hidden, intermediate, vocab;
    int32_t layers, heads, kv_heads, head_dim, context;
    double partial, eps;
  };
  for (const Row& row : {Row{llama_config, 4096, 11008, 32000, 32, 32, 32, 128, 2048, 1, 1e-6},
                         Row{qwen2_config, 4096, 22016, 151936, 32, 32, 32, 128, 32768, 1, 1e-6},
                         Row{qwen3_config, 4096, 22016, 151936, 32, 32, 32, 128, 32768, 1, 1e-6},
                         Row{qwen3_moe_config, 2048, 6144, 151936, 24, 32, 4, 64, 32768, 1, 1e-6},
                         Row{qwen3_next_config, 2048, 5632, 151936, 48, 16, 2, 256, 32768, 0.25, 1e-6},
                         Row{qwen3_5_config, 4096, 12288, 248320, 32, 16, 4, 256, 32768, 0.25, 1e-6},
                         Row{qwen3_5_moe_config, 2048, 0, 248320, 40, 16, 2, 256, 32768, 0.25, 1e-6}}) {
    const ModelConfig c = row.read(JsonValue::parse(R"({"text_config":{}})", "config.json"));
    SCOPED_TRACE(c.hidden);
    EXPECT_EQ(c.hidden, row.hidden);
    EXPECT_EQ(c.intermediate, row.intermediate);
    EXPECT_EQ(c.vocab, row.vocab);
    EXPECT_EQ(c.num_layers, row.layers);
    EXPECT_EQ(c.attention.num_heads, row.heads);
    EXPECT_EQ(c.attention.num_kv_heads, row.kv_heads);
    EXPECT_EQ(c.attention.head_dim, row.head_dim);
    EXPECT_EQ(c.context_length, row.context);
    EXPECT_EQ(c.rotary.theta, 10000);
    EXPECT_EQ(c.rotary.partial_rotary_factor.value_or(1), row.partial);
    EXPECT_EQ(c.eps, static_cast<float>(row.eps));
    EXPECT_FALSE(c.tied_head);
  }
}

TEST(ModelConfig, ExpertsThatAFileLeavesOutAreTheClasss) {
  const auto experts = [](ModelConfig (*read)(const JsonValue&)) {
    const MoEConfig moe = read(JsonValue::parse("{}", "config.json")).moe;
    return std::vector<int64_t>{moe.router.num_experts, moe.router.experts_per_token, moe.intermediate,
                                moe.shared_intermediate};
  };
  EXPECT_EQ(experts(qwen3_moe_config), (std::vector<int64_t>{128, 8, 768, 0}));
  EXPECT_EQ(experts(qwen3_next_config), (std::vector<int64_t>{512, 10, 512, 512}));
  EXPECT_EQ(experts(qwen3_5_moe_config), (std::vector<int64_t>{256, 8, 512, 512}));
}

// Qwen's classes have a number of their own where Llama's has none; null is as many as heads for all.
TEST(ModelConfig, KeyValueHeadsThatAreNullAreAsManyAsHeads) {
  const auto kv_heads = [](ModelConfig (*read)(const JsonValue&), const char* text) {
    return read(JsonValue::parse(text, "config.json")).attention.num_kv_heads;
  };
  EXPECT_EQ(kv_heads(qwen2_config, R"({"num_attention_heads":64})"), 32);
  EXPECT_EQ(kv_heads(qwen2_config, R"({"num_attention_heads":64,"num_key_value_heads":null})"), 64);
  EXPECT_EQ(kv_heads(llama_config, R"({"num_attention_heads":64})"), 64);
}

TEST(ModelConfig, ScaledRotaryTakesTheContextWhereItStatesNoOriginal) {
  for (const char* type : {"yarn", "llama3"}) {
    const ModelConfig c = common(
        str(R"("max_position_embeddings":128,"rope_scaling":{"type":")", type, R"(","factor":4,"truncate":true})"));
    EXPECT_EQ(c.rotary.original_max_position, 128);
    EXPECT_EQ(c.rotary.ramp, RotaryConfig::Ramp::kWhole);
  }
  const ModelConfig exact = common(R"("rope_scaling":{"type":"yarn","factor":4,"truncate":false,"mscale":1})");
  EXPECT_EQ(exact.rotary.ramp, RotaryConfig::Ramp::kExact);
  EXPECT_EQ(exact.rotary.mscale, 1);
}

TEST(ModelConfig, YarnExtendsTheContextThatItWasTrainedWith) {
  const auto context = [](const std::string& type, const std::string& more) {
    return common(str(R"("max_position_embeddings":128,"rope_scaling":{"type":")", type, R"(","factor":4)", more, "}"))
        .context_length;
  };
  EXPECT_EQ(context("yarn", ""), 512);
  EXPECT_EQ(context("yarn", R"(,"original_max_position_embeddings":64)"), 256);
  EXPECT_EQ(context("yarn", R"(,"original_max_position_embeddings":16)"), 128);  // what the file states, at least
  EXPECT_EQ(context("yarn", R"(,"original_max_position_embeddings":1e300)"), 1 << 30);
  EXPECT_EQ(context("llama3", R"(,"original_max_position_embeddings":128)"), 128);  // stated with the scaling in it
  EXPECT_EQ(context("linear", ""), 128);
}

// transformers ignores the factor in classes that rotate whole heads, and fails where frequencies are scaled, too.
TEST(ModelConfig, AShareOfAHeadIsReadByFamiliesThatRotateOne) {
  const std::string half = R"("partial_rotary_factor":0.5)";
  for (const auto read : {llama_config, qwen2_config, qwen3_config, qwen3_moe_config})
    EXPECT_EQ(read(config_with(half)).rotary.partial_rotary_factor, std::nullopt);
  const std::string yarn = R"(,"rope_scaling":{"type":"yarn","factor":2})";
  EXPECT_TRUE(contains(refusal([&] { qwen3_config(config_with(half + yarn)); }),
                       "partial_rotary_factor 0.5 with rope type 'yarn', which is not built for this family"));
  EXPECT_EQ(refusal([&] { qwen3_config(config_with(R"("partial_rotary_factor":1.0)" + yarn)); }), "");
}

TEST(ModelConfig, TheDTypeIsTheTextPartsThenTheTops) {
  const auto dtype = [](const std::string& text) { return stored_dtype_of(JsonValue::parse(text, "config.json")); };
  EXPECT_EQ(dtype("{}"), std::nullopt);
  EXPECT_EQ(dtype(R"({"torch_dtype":"float16"})"), DType::kF16);
  EXPECT_EQ(dtype(R"({"dtype":"float32","torch_dtype":"float16"})"),
            DType::kF32);  // as transformers, which wrote dtype
  EXPECT_EQ(dtype(R"({"dtype":null,"torch_dtype":"float16"})"), DType::kF16);
  EXPECT_EQ(dtype(R"({"dtype":"float16","text_config":{"dtype":"bfloat16"}})"), DType::kBF16);
  EXPECT_EQ(dtype(R"({"dtype":"float16","text_config":{}})"), DType::kF16);
}

}  // namespace
}  // namespace headrace
