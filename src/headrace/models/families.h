// Each family's reading of config.json: a function from the file to flags of the shared decoder.
#pragma once
#include "headrace/models/model_config.h"

namespace headrace {

ModelConfig llama_config(const JsonValue& root);        // llama.cpp
ModelConfig qwen2_config(const JsonValue& root);        // qwen2.cpp
ModelConfig qwen3_config(const JsonValue& root);        // qwen3.cpp
ModelConfig qwen3_moe_config(const JsonValue& root);    // qwen3_moe.cpp
ModelConfig qwen3_next_config(const JsonValue& root);   // qwen3_next.cpp
ModelConfig qwen3_5_config(const JsonValue& root);      // qwen3_5.cpp
ModelConfig qwen3_5_moe_config(const JsonValue& root);  // qwen3_5.cpp

ModelConfig dream_config(const JsonValue& root);             // dream.cpp; DiffuCoder too
ModelConfig fast_dllm_v2_config(const JsonValue& root);      // fast_dllm_v2.cpp
ModelConfig llada_config(const JsonValue& root);             // llada.cpp
ModelConfig llada_moe_config(const JsonValue& root);         // llada_moe.cpp
ModelConfig llada2_config(const JsonValue& root);            // llada2.cpp
ModelConfig stable_diffcoder_config(const JsonValue& root);  // stable_diffcoder.cpp
ModelConfig sdar_config(const JsonValue& root);              // sdar.cpp
ModelConfig sdar_moe_config(const JsonValue& root);          // sdar.cpp

// The block size that SDAR's repositories have at the end of their names: 16 of "SDAR-4B-Chat-b16".
std::optional<int32_t> block_size_in_name(std::string_view name);
// Takes it where config.json states none. What may surprise, for the log: there is neither, and the name is not that of
// one of the makers' models of blocks of 4.
std::optional<std::string> read_sdar_name(const JsonValue& root, std::string_view name, ModelConfig& config);
// LLaDA2.0 does not edit, which its config.json does not tell from LLaDA2.1's. Nothing surprises.
std::optional<std::string> read_llada2_name(const JsonValue& root, std::string_view name, ModelConfig& config);

// Qwen3's graph under another class's defaults.
ModelConfig qwen3_config_with(const JsonValue& root, const ClassDefaults& defaults);
// Fields that families with experts and hybrids share.
void read_moe(const JsonValue& text, const ExpertDefaults& defaults, ModelConfig& config);
// Error kModelFile when the router chooses more experts, or groups, than there are, or groups of unequal size.
void check_router(const JsonValue& root, const ExpertRouterConfig& router);
void read_gdn(const JsonValue& text, ModelConfig& config);

// Fields of diffusion families, with the family's default where config.json is silent. Error kModelFile, naming the
// key, for a stated id outside the vocabulary and a block of none or more than 65536 tokens. load_model
// holds the default against the vocabulary: a caller may state another id.
int32_t read_mask_token_id(const JsonValue& root, int32_t fallback, int64_t vocab);
int32_t read_block_size(const JsonValue& root, const char* key, int32_t fallback);

}  // namespace headrace
