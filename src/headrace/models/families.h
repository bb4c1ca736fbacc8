// One function per family: from config.json to the configuration of the shared decoder.
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

// Returns the block size at the end of SDAR's repository names: 16 for "SDAR-4B-Chat-b16".
std::optional<int32_t> block_size_in_name(std::string_view name);
// Uses that block size if config.json states none. Returns a warning for the log if the name has none either and is not
// that of an official model with blocks of 4.
std::optional<std::string> read_sdar_name(const JsonValue& root, std::string_view name, ModelConfig& config);
// Recognises LLaDA2.0, which does not edit, by its name: its config.json equals LLaDA2.1's. Returns no warning.
std::optional<std::string> read_llada2_name(const JsonValue& root, std::string_view name, ModelConfig& config);

// Qwen3's architecture with another class's defaults.
ModelConfig qwen3_config_with(const JsonValue& root, const ClassDefaults& defaults);
// Fields common to families with experts and to hybrids.
void read_moe(const JsonValue& text, const ExpertDefaults& defaults, ModelConfig& config);
// Error kModelFile if the router chooses more experts or groups than there are, or if groups differ in size.
void check_router(const JsonValue& root, const ExpertRouterConfig& router);
void read_gdn(const JsonValue& text, ModelConfig& config);

// Fields of diffusion families, or the family's default. Error kModelFile, naming the key, for a stated id outside the
// vocabulary and a block size outside 1 to 65536. load_model checks the default id against the vocabulary, because a
// caller may override it.
int32_t read_mask_token_id(const JsonValue& root, int32_t fallback, int64_t vocab);
int32_t read_block_size(const JsonValue& root, const char* key, int32_t fallback);

}  // namespace headrace
