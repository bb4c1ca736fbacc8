// One Gated DeltaNet layer: shapes and views of its small weights, without state.
#pragma once
#include "headrace/batch/forward_batch.h"
#include "headrace/core/tensor.h"
#include "headrace/ops/rms_norm.h"

namespace headrace {

struct RadixLinearAttentionConfig {
  int32_t layer_id = 0;       // global
  int32_t gdn_layer_idx = 0;  // 0-based among the GDN layers; index into the GDN pool
  int32_t num_k_heads = 0, num_v_heads = 0, head_k_dim = 0, head_v_dim = 0;
  // Not owned; must outlive the layer.
  TensorView conv_weight = {};  // [conv_dim, kernel], any float dtype; the last column multiplies the newest token
  TensorView a_log = {};        // float32 [num_v_heads]
  TensorView dt_bias = {};      // float32 [num_v_heads]

  int32_t conv_dim() const { return 2 * num_k_heads * head_k_dim + num_v_heads * head_v_dim; }
};

struct GDNInputs {
  TensorView mixed_qkv = {};  // [num_tokens, conv_dim]: projected q | k | v
  TensorView a = {}, b = {};  // [num_tokens, num_v_heads]
  GatedNorm norm = {};        // norm of the output; null gate: none
};

// Immutable; callable from any thread. Error kInvalidArgument from the constructor names the field.
class RadixLinearAttention {
 public:
  explicit RadixLinearAttention(const RadixLinearAttentionConfig& config);
  // For batches of this backend only. Error kUnsupported if it has no kernel for the key head size, or for the dtype of
  // the convolution's weight or states.
  RadixLinearAttention(const RadixLinearAttentionConfig& config, const AttentionBackend& backend);

  // out = conv1d + SiLU, L2 norm, the gated delta rule and in.norm, by batch.attn_backend->forward_gdn.
  //   out [num_tokens, num_v_heads * head_v_dim] or 3-D; written in full, zeros when the batch is idle
  void forward(const ForwardBatch& batch, const GDNInputs& in, const TensorView& out) const;

  const RadixLinearAttentionConfig& config() const { return config_; }

 private:
  RadixLinearAttentionConfig config_;
};

}  // namespace headrace
