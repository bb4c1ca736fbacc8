// One full-attention layer: shapes and options, without weights or cache.
#pragma once
#include <optional>
#include <string>

#include "headrace/batch/forward_batch.h"
#include "headrace/batch/key_span.h"
#include "headrace/core/tensor.h"
#include "headrace/ops/norm_rotary.h"

namespace headrace {

// pymllm's ten fields, in its order.
struct RadixAttentionConfig {
  int32_t num_heads = 0;
  int32_t head_dim = 0;                             // of q and k
  float scaling = 1;                                // usually 1 / sqrt(head_dim)
  int32_t num_kv_heads = 0;                         // divides num_heads
  int32_t layer_id = 0;                             // global layer index
  float logit_cap = 0;                              // 0: none
  std::optional<int32_t> v_head_dim = {};           // absent: head_dim
  std::optional<int32_t> sliding_window_size = {};  // keys that a token sees, its own included; absent: all
  enum class KeySource : uint8_t { kSelf, kCrossAttention } is_cross_attention = KeySource::kSelf;
  AttentionType attn_type = AttentionType::kDecoder;

  bool operator==(const RadixAttentionConfig&) const = default;
};

enum class SaveKV : uint8_t { kYes, kNo };

// Arguments of a layer besides q, k and v.
struct RadixAttentionOptions {
  SaveKV save_kv_cache = SaveKV::kYes;  // kNo: new K and V are attended to but not stored
  TensorView q_rope = {}, k_rope = {};  // [num_tokens, heads, r]: an added score term q_rope . k_rope; then q and k
                                        // have head_dim - r elements and the pool holds k | k_rope
  TensorView lse = {};                  // float32 [num_tokens, num_heads]: written with the log-sum-exp; or null
  // Norm and rotary embedding, applied first to q (if not null) and k. Excludes q_rope. May overwrite q and k; their
  // contents are unspecified afterwards.
  std::optional<NormRotaryArgs> norm_rotary = {};
  TensorView gate = {};  // [num_tokens, num_heads, v_head_dim], dtype of out: finally out *= sigmoid(gate); or null
};

// Immutable; callable from any thread. Error kInvalidArgument from the constructor names the field.
class RadixAttention {
 public:
  explicit RadixAttention(const RadixAttentionConfig& config);
  // For batches of this backend only. Error kUnsupported at construction if the backend has no kernel for the head
  // size.
  RadixAttention(const RadixAttentionConfig& config, const AttentionBackend& backend);

  // out = attention of this batch's tokens, by batch.attn_backend.
  //   q    [num_tokens, num_heads * head_dim] or [num_tokens, num_heads, head_dim]; rows may be strided. Null q and
  //        out: only stores k and v
  //   k, v [num_tokens, num_kv_heads * dim] or 3-D, or both null: keys come from the pool (shared KV). For
  //        cross-attention their rows are encoder tokens, stored at batch.attn.encoder_write_slots.
  //   out  [num_tokens, num_heads * v_head_dim] or 3-D, dtype of q; written in full, zeros if the batch is idle
  // Errors as AttentionBackend::forward.
  void forward(const TensorView& q, const TensorView& k, const TensorView& v, const ForwardBatch& batch,
               const TensorView& out, const RadixAttentionOptions& options = {}) const;

  const RadixAttentionConfig& config() const { return config_; }
  int32_t layer_id() const { return config_.layer_id; }
  int32_t tp_q_head_num() const { return config_.num_heads; }
  int32_t tp_k_head_num() const { return config_.num_kv_heads; }
  int32_t tp_v_head_num() const { return config_.num_kv_heads; }
  int32_t qk_head_dim() const { return config_.head_dim; }
  int32_t v_head_dim() const { return config_.v_head_dim.value_or(config_.head_dim); }
  int32_t window() const { return config_.sliding_window_size.value_or(kNoWindow); }
  bool is_cross_attention() const {
    return config_.is_cross_attention == RadixAttentionConfig::KeySource::kCrossAttention;
  }

  std::string extra_repr() const;  // one line: "layer 3: 32/8 heads of 128, scaling 0.0884, window 4096"

 private:
  RadixAttentionConfig config_;
};

}  // namespace headrace
