// What config.json says of a diffusion family, and the family's defaults where it is silent.
#include <gtest/gtest.h>

#include "headrace/models/families.h"
#include "support/refusal.h"

namespace headrace {
namespace {

JsonValue diffusion_with(const std::string& more) {
  return JsonValue::parse(R"({"hidden_size":96,"vocab_size":151936,"num_hidden_layers":2,"num_attention_heads":4,)"
                          R"("num_key_value_heads":4,"intermediate_size":160,"rope_theta":1e6)" +
                              (more.empty() ? "" : "," + more) + "}",
                          "config.json");
}

std::string refusal_by(ModelConfig (*read)(const JsonValue&), const JsonValue& root) {
  return testing_support::refusal_of([&] { read(root); }).sentence;
}

TEST(DiffusionConfig, SDARHasBlocksOfFourAndItsOwnMaskUnlessItStates) {
  const ModelConfig silent = sdar_config(diffusion_with(""));
  ASSERT_TRUE(silent.diffusion);
  EXPECT_EQ(silent.diffusion->mask_token_id, 151669);
  EXPECT_EQ(silent.diffusion->block_size, 4);
  EXPECT_EQ(silent.diffusion->attention, DiffusionInfo::Attention::kBlockCausal);
  EXPECT_EQ(silent.diffusion->logits_of, DiffusionInfo::LogitsOf::kSame);
  EXPECT_FALSE(silent.tied_head);  // although Qwen3-4B ties
  const ModelConfig stated = sdar_config(diffusion_with(R"("mask_token_id":7,"block_size":32)"));
  EXPECT_EQ(stated.diffusion->mask_token_id, 7);
  EXPECT_EQ(stated.diffusion->block_size, 32);
  EXPECT_EQ(stated.diffusion->sub_block_size, 32);
}

TEST(DiffusionConfig, SDARsRepositoriesHaveTheBlockSizeAtTheEndOfTheirNames) {
  EXPECT_EQ(block_size_in_name("SDAR-4B-Chat-b16"), 16);
  EXPECT_EQ(block_size_in_name("models--JetLM--SDAR-30B-A3B-Sci-b64"), 64);
  for (const char* name : {"SDAR-4B-Chat", "TraDo-8B-Base", "SDAR-4B-Chat-b", "SDAR-b16-Chat", "SDAR-b0", "SDAR-b-8",
                           "SDAR-b99999999999", "SDAR-b70000", "b16", ""}) {
    EXPECT_FALSE(block_size_in_name(name)) << name;
  }
}

TEST(DiffusionConfig, SDARTakesItsNamesBlockSizeWhereItStatesNone) {
  const auto read = [](const std::string& more, std::string_view name) {
    const JsonValue root = diffusion_with(more);
    ModelConfig c = sdar_config(root);
    const auto surprise = read_sdar_name(root, name, c);
    EXPECT_EQ(c.diffusion->sub_block_size, c.diffusion->block_size);
    return std::pair(c.diffusion->block_size, surprise.has_value());
  };
  EXPECT_EQ(read("", "SDAR-4B-Chat-b16"), std::pair(16, false));
  EXPECT_EQ(read(R"("block_size":8)", "SDAR-4B-Chat-b16"), std::pair(8, false));
  EXPECT_EQ(read("", "my model"), std::pair(4, true));
  for (const char* name : {"SDAR-4B-Chat", "models--JetLM--SDAR-30B-A3B-Sci", "models--my--SDAR-1.7B-Chat"}) {
    EXPECT_EQ(read("", name), std::pair(4, false)) << name << " is of the makers' default";
  }
  for (const char* name : {"SDAR-4B-Chat-tuned", "my--SDAR-4B-Chat", "models--my--SDAR-4B", "Chat", "models--", ""}) {
    EXPECT_EQ(read("", name), std::pair(4, true)) << name;
  }
}

// Released LLaDA-8B, all but its size.
std::string llada_with(const std::string& more) {
  return R"({"d_model":96,"n_heads":4,"n_kv_heads":2,"n_layers":3,"mlp_hidden_size":160,"vocab_size":126464,)"
         R"("embedding_size":126464,"max_sequence_length":4096,"rope_theta":5e5,"rms_norm_eps":1e-5,"block_type":"llama",)"
         R"("activation_type":"silu","layer_norm_type":"rms","rope":true,"include_bias":false,"weight_tying":false)" +
         (more.empty() ? "" : "," + more) + "}";
}

TEST(DiffusionConfig, LLaDAIsReadUnderItsOwnNames) {
  const ModelConfig c = llada_config(JsonValue::parse(llada_with(""), "config.json"));
  EXPECT_EQ(c.hidden, 96);
  EXPECT_EQ(c.intermediate, 160);
  EXPECT_EQ(c.num_layers, 3);
  EXPECT_EQ(c.layer_types.size(), 3u);
  EXPECT_EQ(c.context_length, 4096);
  EXPECT_EQ(c.attention.num_kv_heads, 2);
  EXPECT_EQ(c.attention.head_dim, 24);
  EXPECT_EQ(c.rotary.theta, 5e5);
  EXPECT_FLOAT_EQ(c.eps, 1e-5f);
  EXPECT_EQ(c.diffusion->mask_token_id, 126336);
  EXPECT_EQ(c.eos_ids, std::vector<int32_t>{126348});  // the turn's end, which config.json leaves out
}

TEST(DiffusionConfig, AnotherGraphUnderLLaDAsNamesIsRefusedByKey) {
  for (const char* more : {R"("alibi":true)", R"("attention_layer_norm":true)", R"("input_emb_norm":true)",
                           R"("scale_logits":true)", R"("block_group_size":2)", R"("clip_qkv":8.0)"}) {
    const std::string key = std::string(more).substr(1, std::string(more).find('"', 1) - 1);
    const JsonValue root = JsonValue::parse(llada_with(more), "config.json");
    EXPECT_NE(refusal_by(llada_config, root).find(key), std::string::npos) << more;
  }
  const JsonValue gelu = JsonValue::parse(R"({"d_model":96,"activation_type":"gelu"})", "config.json");
  EXPECT_NE(refusal_by(llada_config, gelu).find("activation_type"), std::string::npos);
  const JsonValue odd = JsonValue::parse(R"({"d_model":96,"activation_type":"a\u0000b"})", "config.json");
  EXPECT_EQ(refusal_by(llada_config, odd),
            R"(config.json: the top level has activation_type 'a\x00b'; built is: silu)");
}

const std::string kSomeExperts = R"("num_experts":16,"num_experts_per_tok":3,"moe_intermediate_size":24)";

TEST(DiffusionConfig, LLaDA2HasALimitedRouterAndAHalfRotatedHead) {
  const JsonValue root = JsonValue::parse(
      R"({"hidden_size":96,"vocab_size":157184,"num_hidden_layers":2,"num_attention_heads":4,"intermediate_size":160,)"
      R"("rope_theta":6e5,"n_group":4,"topk_group":2,"routed_scaling_factor":2.5,"first_k_dense_replace":1,)"
      R"("num_shared_experts":2,)" +
          kSomeExperts + "}",
      "config.json");
  const ModelConfig c = llada2_config(root);
  EXPECT_EQ(c.moe_layers, (std::vector<bool>{false, true}));
  EXPECT_EQ(c.moe.router.scores, ExpertRouterConfig::Scores::kSigmoid);
  EXPECT_EQ(c.moe.router.num_groups, 4);
  EXPECT_EQ(c.moe.router.groups_per_token, 2);
  EXPECT_EQ(c.moe.router.weight_scale, 2.5f);
  EXPECT_EQ(c.moe.shared_intermediate, 48);
  EXPECT_EQ(c.moe.shared_gate, MoEConfig::SharedGate::kNone);
  EXPECT_EQ(c.rotary.partial_rotary_factor, 0.5);
  EXPECT_EQ(c.attention.o_bias, HasBias::kYes);  // the class's default; released files say false
  EXPECT_EQ(c.attention.qkv_bias, HasBias::kNo);
  EXPECT_EQ(c.diffusion->mask_token_id, 156895);
  EXPECT_EQ(c.diffusion->block_size, 32);
}

TEST(DiffusionConfig, FieldsThatLLaDA2LeavesOutAreItsClasss) {
  const ModelConfig c = llada2_config(JsonValue::parse(R"({"moe_intermediate_size":24})", "config.json"));
  EXPECT_EQ(c.hidden, 1024);
  EXPECT_EQ(c.vocab, 30592);
  EXPECT_EQ(c.num_layers, 24);
  EXPECT_EQ(c.attention.num_heads, 16);
  EXPECT_EQ(c.attention.head_dim, 64);
  EXPECT_EQ(c.context_length, 16384);
  EXPECT_EQ(c.rotary.theta, 10000);
  EXPECT_EQ(c.rotary.partial_rotary_factor, 0.5);
  EXPECT_EQ(c.eps, 1e-5f);
  EXPECT_EQ(c.moe.router.num_experts, 16);
  EXPECT_EQ(c.moe.router.experts_per_token, 2);
  EXPECT_EQ(c.moe.router.num_groups, 8);
  EXPECT_EQ(c.moe.router.groups_per_token, 4);
  EXPECT_EQ(c.moe.router.weight_scale, 2.5f);
}

TEST(DiffusionConfig, LLaDA2TakesItsRotaryShareAsANumberOfElementsToo) {
  EXPECT_EQ(
      llada2_config(diffusion_with(R"("mask_token_id":1,"rotary_dim":6,)" + kSomeExperts)).rotary.partial_rotary_factor,
      0.25);
}

TEST(DiffusionConfig, ImpossibleGroupsOfExpertsAreRefused) {
  const auto refused = [](const std::string& more) {
    return refusal_by(llada2_config, diffusion_with(R"("mask_token_id":1,)" + kSomeExperts + "," + more));
  };
  EXPECT_NE(refused(R"("n_group":5)").find("n_group 5"), std::string::npos);
  EXPECT_NE(refused(R"("n_group":4,"topk_group":5)").find("topk_group 5"), std::string::npos);
  EXPECT_NE(refused(R"("n_group":16,"topk_group":2)").find("num_experts_per_tok"), std::string::npos);
  EXPECT_NE(refused(R"("score_function":"softmax")").find("score_function"), std::string::npos);
}

TEST(DiffusionConfig, LLaDAMoENeverRenormalisesWhateverItStates) {
  const std::string experts =
      R"("mask_token_id":1,"num_experts":8,"num_experts_per_tok":3,"expert_intermediate_size":48)";
  const ModelConfig c = llada_moe_config(diffusion_with(experts + R"(,"norm_topk_prob":true,"moe_layer_freq":[0,1])"));
  EXPECT_EQ(c.moe.router.norm_topk_prob, ExpertRouterConfig::Renormalise::kNo);
  EXPECT_EQ(c.moe_layers, (std::vector<bool>{false, true}));
  EXPECT_EQ(c.moe.intermediate, 48);
  EXPECT_FLOAT_EQ(c.eps, 1e-5f);
  EXPECT_EQ(c.diffusion->attention, DiffusionInfo::Attention::kFull);
  for (const char* more : {R"("clip_qkv":8)", R"("shared_expert_intermediate_size":32)",
                           R"("moe_router_enable_expert_bias":true)", R"("moe_layer_freq":[1])"}) {
    const std::string key = std::string(more).substr(1, std::string(more).find('"', 1) - 1);
    EXPECT_NE(refusal_by(llada_moe_config, diffusion_with(experts + "," + more)).find(key), std::string::npos) << more;
  }
}

TEST(DiffusionConfig, DreamAndFastDLLMPredictFromThePositionBefore) {
  const ModelConfig dream = dream_config(diffusion_with("")),
                    fast = fast_dllm_v2_config(diffusion_with(R"("bd_size":32)"));
  EXPECT_EQ(dream.diffusion->logits_of, DiffusionInfo::LogitsOf::kBefore);
  EXPECT_EQ(dream.diffusion->mask_token_id, 151666);
  EXPECT_EQ(fast.diffusion->logits_of, DiffusionInfo::LogitsOf::kBefore);
  EXPECT_EQ(fast.diffusion->mask_token_id, 151665);
  EXPECT_EQ(fast.diffusion->block_size, 32);
  EXPECT_EQ(fast.diffusion->sub_block_size, 8);
  EXPECT_EQ(fast_dllm_v2_config(diffusion_with(R"("bd_size":4)")).diffusion->sub_block_size, 4);
}

TEST(DiffusionConfig, OnlyStableDiffCodersBlocksDoNotWaitForEachOther) {
  using Progress = DiffusionInfo::Progress;
  EXPECT_EQ(stable_diffcoder_config(diffusion_with("")).diffusion->progress, Progress::kAlways);
  EXPECT_EQ(sdar_config(diffusion_with("")).diffusion->progress, Progress::kInTurn);
  EXPECT_EQ(fast_dllm_v2_config(diffusion_with("")).diffusion->progress, Progress::kInTurn);
  EXPECT_EQ(dream_config(diffusion_with("")).diffusion->progress, Progress::kInTurn);
  EXPECT_EQ(llada2_config(diffusion_with(R"("mask_token_id":1,)" + kSomeExperts)).diffusion->progress,
            Progress::kInTurn);
}

TEST(DiffusionConfig, CausalFamiliesHaveNone) { EXPECT_FALSE(qwen3_config(diffusion_with("")).diffusion); }

TEST(DiffusionConfig, AMaskOutsideTheVocabularyAndAnEmptyBlockAreRefused) {
  EXPECT_NE(refusal_by(sdar_config, diffusion_with(R"("mask_token_id":151936)")).find("mask_token_id"),
            std::string::npos);
  EXPECT_NE(refusal_by(sdar_config, diffusion_with(R"("block_size":0)")).find("block_size"), std::string::npos);
}

}  // namespace
}  // namespace headrace
