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
    EXPECT_EQ(error.code(), ErrorCode::kModelFile);
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
