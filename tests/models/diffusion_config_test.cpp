// What config.json says of a diffusion family, and the family's defaults where it is silent.
#include <gtest/gtest.h>

#include "headrace/models/families.h"

namespace headrace {
namespace {

JsonValue config_with(const std::string& more) {
  return JsonValue::parse(R"({"hidden_size":96,"vocab_size":151936,"num_hidden_layers":2,"num_attention_heads":4,)"
                          R"("intermediate_size":160,"rope_theta":1e6)" + (more.empty() ? "" : "," + more) + "}",
                          "config.json");
}

std::string refusal(ModelConfig (*read)(const JsonValue&), const JsonValue& root) {
  try {
    read(root);
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(DiffusionConfig, SDARHasBlocksOfFourAndItsOwnMaskUnlessItStates) {
  const ModelConfig silent = sdar_config(config_with(""));
  ASSERT_TRUE(silent.diffusion);
  EXPECT_EQ(silent.diffusion->mask_token_id, 151669);
  EXPECT_EQ(silent.diffusion->block_size, 4);
  EXPECT_EQ(silent.diffusion->attention, DiffusionInfo::Attention::kBlockCausal);
  EXPECT_EQ(silent.diffusion->logits_of, DiffusionInfo::LogitsOf::kSame);
  EXPECT_FALSE(silent.tied_head);  // although Qwen3-4B ties
  const ModelConfig stated = sdar_config(config_with(R"("mask_token_id":7,"block_size":32)"));
  EXPECT_EQ(stated.diffusion->mask_token_id, 7);
  EXPECT_EQ(stated.diffusion->block_size, 32);
  EXPECT_EQ(stated.diffusion->sub_block_size, 32);
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
    EXPECT_NE(refusal(llada_config, root).find(key), std::string::npos) << more;
  }
  const JsonValue gelu = JsonValue::parse(R"({"d_model":96,"activation_type":"gelu"})", "config.json");
  EXPECT_NE(refusal(llada_config, gelu).find("activation_type"), std::string::npos);
}

TEST(DiffusionConfig, DreamAndFastDLLMPredictFromThePositionBefore) {
  const ModelConfig dream = dream_config(config_with("")), fast = fast_dllm_v2_config(config_with(R"("bd_size":32)"));
  EXPECT_EQ(dream.diffusion->logits_of, DiffusionInfo::LogitsOf::kBefore);
  EXPECT_EQ(dream.diffusion->mask_token_id, 151666);
  EXPECT_EQ(fast.diffusion->logits_of, DiffusionInfo::LogitsOf::kBefore);
  EXPECT_EQ(fast.diffusion->mask_token_id, 151665);
  EXPECT_EQ(fast.diffusion->block_size, 32);
  EXPECT_EQ(fast.diffusion->sub_block_size, 8);
  EXPECT_EQ(fast_dllm_v2_config(config_with(R"("bd_size":4)")).diffusion->sub_block_size, 4);
}

TEST(DiffusionConfig, CausalFamiliesHaveNone) { EXPECT_FALSE(qwen3_config(config_with("")).diffusion); }

TEST(DiffusionConfig, AMaskOutsideTheVocabularyAndAnEmptyBlockAreRefused) {
  EXPECT_NE(refusal(sdar_config, config_with(R"("mask_token_id":151936)")).find("mask_token_id"), std::string::npos);
  EXPECT_NE(refusal(sdar_config, config_with(R"("block_size":0)")).find("block_size"), std::string::npos);
  const JsonValue small = JsonValue::parse(R"({"hidden_size":96,"vocab_size":512,"num_hidden_layers":2,)"
                                           R"("num_attention_heads":4,"intermediate_size":160})", "config.json");
  EXPECT_NE(refusal(sdar_config, small).find("151669"), std::string::npos);
}

}  // namespace
}  // namespace headrace
