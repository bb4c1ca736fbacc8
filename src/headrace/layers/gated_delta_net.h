// The Gated DeltaNet layer of Qwen3-Next and Qwen3.5.
#pragma once
#include <optional>

#include "headrace/attention/radix_linear_attention.h"
#include "headrace/layers/linear.h"
#include "headrace/layers/rms_norm.h"

namespace headrace {

struct GatedDeltaNetConfig {
  int64_t hidden = 0;
  int32_t layer_id = 0, gdn_layer_idx = 0;
  int32_t num_k_heads = 0, num_v_heads = 0, head_k_dim = 0, head_v_dim = 0, conv_kernel = 4;
  float eps = 1e-6f;
  enum class Layout : uint8_t {
    kSeparate,  // Qwen3.5: in_proj_qkv, in_proj_z, in_proj_b, in_proj_a in plain order
    kGrouped,   // Qwen3-Next: in_proj_qkvz and in_proj_ba, grouped by key head; reordered once at load
  } layout = Layout::kSeparate;

  int64_t key_dim() const { return int64_t{num_k_heads} * head_k_dim; }
  int64_t value_dim() const { return int64_t{num_v_heads} * head_v_dim; }
  int64_t conv_dim() const { return 2 * key_dim() + value_dim(); }
};

// Source: Yang et al. 2024, Gated Delta Networks. Callable from one thread at a time (its backend's).
class GatedDeltaNet {
 public:
  GatedDeltaNet(const WeightScope& scope, const GatedDeltaNetConfig& config);

  // x += mixer(norm(x)), x [tokens, hidden]. The last GEMM may be pending (add_gemm).
  void add_to(const LayerContext& context, const RMSNorm& norm, const TensorView& x, const ForwardBatch& batch) const;

 private:
  static Tensor reorder(const WeightScope& scope, const GatedDeltaNetConfig& config);

  GatedDeltaNetConfig config_;
  Tensor copy_;  // reordered input projections, one after another; null if the checkpoint's are used directly
  Linear qkv_, z_, b_, a_, out_proj_;
  Tensor a_log_, dt_bias_;  // float32 [num_v_heads]
  TensorView norm_weight_;  // [head_v_dim]; not owned
  RadixLinearAttention attention_;
};

}  // namespace headrace
