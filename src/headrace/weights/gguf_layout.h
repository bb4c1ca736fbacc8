// How GGUF files name and order the tensors of Hugging Face's checkpoints. Reader and writer share it. Sources:
// gguf-py's tensor names, convert_hf_to_gguf's changes.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace {

// Sizes that the names and changes depend on.
struct GgufSizes {
  std::string_view architecture;
  int64_t trunk_layers = 0, heads = 0, kv_heads = 0;
  int64_t num_k_heads = 0, num_v_heads = 0, head_k_dim = 0, head_v_dim = 0;  // of Gated DeltaNet layers; 0: none

  bool is_hybrid() const { return num_v_heads > 0; }
  int64_t key_dim() const { return num_k_heads * head_k_dim; }
  int64_t value_dim() const { return num_v_heads * head_v_dim; }
};

// Tensors of a layer that have a name each way. GGUF's are behind "blk.N.", Hugging Face's behind "model.layers.N.".
struct GgufLayerName {
  std::string_view gguf, huggingface;
};
inline constexpr std::array kGgufLayerNames = {
    GgufLayerName{"attn_norm.weight", "input_layernorm.weight"},
    GgufLayerName{"ffn_norm.weight", "post_attention_layernorm.weight"},
    GgufLayerName{"post_attention_norm.weight", "post_attention_layernorm.weight"},  // of hybrids
    GgufLayerName{"attn_q.weight", "self_attn.q_proj.weight"},
    GgufLayerName{"attn_k.weight", "self_attn.k_proj.weight"},
    GgufLayerName{"attn_v.weight", "self_attn.v_proj.weight"},
    GgufLayerName{"attn_output.weight", "self_attn.o_proj.weight"},
    GgufLayerName{"attn_q.bias", "self_attn.q_proj.bias"},
    GgufLayerName{"attn_k.bias", "self_attn.k_proj.bias"},
    GgufLayerName{"attn_v.bias", "self_attn.v_proj.bias"},
    GgufLayerName{"attn_output.bias", "self_attn.o_proj.bias"},
    GgufLayerName{"attn_q_norm.weight", "self_attn.q_norm.weight"},
    GgufLayerName{"attn_k_norm.weight", "self_attn.k_norm.weight"},
    GgufLayerName{"ffn_gate.weight", "mlp.gate_proj.weight"},
    GgufLayerName{"ffn_up.weight", "mlp.up_proj.weight"},
    GgufLayerName{"ffn_down.weight", "mlp.down_proj.weight"},
    GgufLayerName{"ffn_gate_inp.weight", "mlp.gate.weight"},
    GgufLayerName{"ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight"},
    GgufLayerName{"ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight"},
    GgufLayerName{"ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight"},
    GgufLayerName{"ssm_norm.weight", "linear_attn.norm.weight"},
};

// GGUF names of a layer.
inline bool is_query_or_key(std::string_view name) {
  return name.starts_with("attn_q.") || name.starts_with("attn_k.");
}
// Of hybrids, the norms whose weights are 1 + w.
inline bool is_shifted_norm(std::string_view name) {
  return name.ends_with("norm.weight") && name != "ssm_norm.weight";
}

// Row i of one form is row order[i] of the other one.
using RowOrder = std::vector<int32_t>;

void append_rows(RowOrder& order, int64_t first, int64_t count);
RowOrder inverse_of(const RowOrder& order);

// From GGUF's rows to Hugging Face's. Llama's files pair neighbouring rows of a head for the rotary embedding, Hugging
// Face row j with row j + D/2.
RowOrder llama_rows(int64_t rows, int64_t heads);

// Files of qwen35 keep value head g r + j of key head g at place j Hk + g.
bool moves_value_heads(const GgufSizes& s);
int64_t place_of_value_head(const GgufSizes& s, int64_t head);
// From GGUF's rows to Hugging Face's: rows of value heads, `unit` rows each, behind `first` other rows.
RowOrder value_head_rows(const GgufSizes& s, int64_t first, int64_t unit);

// Rows of Qwen3-Next's in_proj_qkvz, in which key head g has [q | k | v of its value heads | z of these]: those of
// [all q | all k | all v], and those of z.
std::pair<RowOrder, RowOrder> rows_of_grouped_qkvz(const GgufSizes& s);
// Rows of its in_proj_ba, in which key head g has [b of its value heads | a of them]: those of b, and those of a.
std::pair<RowOrder, RowOrder> rows_of_grouped_ba(const GgufSizes& s);

}  // namespace headrace
