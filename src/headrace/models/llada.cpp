// LLaDA-8B and LLaDA-1.5: Llama with OLMo's tensor names and full attention.
// Source: Nie et al. 2025, Large Language Diffusion Models. block_size is for semi-autoregressive decoding: the model
// has none.
#include "headrace/core/printable.h"
#include "headrace/models/families.h"

namespace headrace {
namespace {

constexpr NameRule kLladaNames[] = {{"model.embed_tokens.", "model.transformer.wte."},
                                    {"model.norm.", "model.transformer.ln_f."},
                                    {"lm_head.", "model.transformer.ff_out."},
                                    {"model.layers.", "model.transformer.blocks."},
                                    {".input_layernorm.", ".attn_norm."},
                                    {".post_attention_layernorm.", ".ff_norm."},
                                    {".self_attn.o_proj.", ".attn_out."},
                                    {".self_attn.", "."},
                                    {".mlp.gate_proj.", ".ff_proj."},
                                    {".mlp.up_proj.", ".up_proj."},
                                    {".mlp.down_proj.", ".ff_out."}};

void require_flag(const JsonValue& root, const char* key, bool built) {
  HR_REQUIRE(root.bool_or(key, built) == built, ErrorCode::kUnsupported, root.where(), " has ", key,
             built ? " false" : " true", ", which is not built");
}

void require_text(const JsonValue& root, const char* key, std::string_view built) {
  const std::string stated = root.string_or(key, built);
  HR_REQUIRE(stated == built, ErrorCode::kUnsupported, root.where(), " has ", key, " '", printable(stated),
             "'; built is: ", built);
}

void refuse_other_llada_graphs(const JsonValue& root) {
  require_text(root, "block_type", "llama");
  require_text(root, "activation_type", "silu");
  require_text(root, "layer_norm_type", "rms");
  require_flag(root, "rope", true);
  for (const char* key : {"alibi", "attention_layer_norm", "input_emb_norm", "scale_logits", "include_bias",
                          "multi_query_attention", "bias_for_layer_norm"}) {
    require_flag(root, key, false);
  }
  const int64_t group = root.int_or("block_group_size", 1);
  HR_REQUIRE(group == 1, ErrorCode::kUnsupported, root.where(), " has block_group_size ", group, "; built is: 1");
  HR_REQUIRE(root.find("clip_qkv") == nullptr, ErrorCode::kUnsupported, root.where(),
             " has clip_qkv, which is not built");
}

SelfAttentionConfig llada_attention_of(const JsonValue& root, const ModelConfig& c) {
  const auto heads = static_cast<int32_t>(root.at("n_heads").as_int(1, 1 << 16));
  const auto kv_heads = static_cast<int32_t>(root.int_or("n_kv_heads", heads, 1, 1 << 16));
  HR_REQUIRE(heads % kv_heads == 0, ErrorCode::kModelFile, root.at("n_heads").where(), " is ", heads,
             ", expected a multiple of n_kv_heads ", kv_heads);
  HR_REQUIRE(c.hidden % heads == 0, ErrorCode::kModelFile, root.at("d_model").where(), " is ", c.hidden,
             ", expected a multiple of ", heads, " heads");
  return {.hidden = c.hidden,
          .num_heads = heads,
          .num_kv_heads = kv_heads,
          .head_dim = static_cast<int32_t>(c.hidden / heads),
          .eps = c.eps,
          .qkv_bias = root.bool_or("include_qkv_bias", false) ? HasBias::kYes : HasBias::kNo};
}

}  // namespace

ModelConfig llada_config(const JsonValue& root) {
  refuse_other_llada_graphs(root);
  constexpr int64_t kReleasedVocab = 126464;
  constexpr int32_t kTurnEnd = 126348;  // config.json states <|endoftext|> alone
  ModelConfig c;
  c.hidden = root.at("d_model").as_int(1, kMaxModelDim);
  c.intermediate = root.int_or("mlp_hidden_size", root.int_or("mlp_ratio", 4, 1, 64) * c.hidden, 1, kMaxModelDim);
  c.vocab = root.int_or("embedding_size", root.at("vocab_size").as_int(1, kMaxModelDim), 1, kMaxModelDim);
  c.num_layers = static_cast<int32_t>(root.at("n_layers").as_int(1, 4096));
  c.context_length = static_cast<int32_t>(root.int_or("max_sequence_length", 4096, 1, int64_t{1} << 30));
  c.eps = static_cast<float>(root.float_or("rms_norm_eps", 1e-5));
  c.tied_head = root.bool_or("weight_tying", false);
  c.layer_types.assign(static_cast<size_t>(c.num_layers), LayerType::kFullAttention);
  c.attention = llada_attention_of(root, c);
  c.rotary.theta = root.float_or("rope_theta", 10000);
  c.stored_dtype = stored_dtype_of(root);
  c.names = kLladaNames;
  if (c.vocab == kReleasedVocab) c.eos_ids.push_back(kTurnEnd);
  c.diffusion = DiffusionInfo{.mask_token_id = read_mask_token_id(root, 126336, c.vocab),
                              .block_size = 32,
                              .sub_block_size = 32,
                              .attention = DiffusionInfo::Attention::kFull,
                              .acceptance = DiffusionInfo::Acceptance::kAtLeast,
                              .loop = DiffusionInfo::Loop::kEven,
                              .guidance = DiffusionInfo::Guidance::kMaskedPrompt};
  return c;
}

}  // namespace headrace
