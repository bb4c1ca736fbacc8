#include "headrace/attention/radix_linear_attention.h"

#include "headrace/attention/attention_backend.h"
#include "headrace/ops/checks.h"

namespace headrace {

RadixLinearAttention::RadixLinearAttention(const RadixLinearAttentionConfig& config) : config_(config) {
  const auto& c = config_;
  const std::string name = str("gdn layer ", c.layer_id);
  HR_REQUIRE(c.num_k_heads > 0 && c.num_v_heads > 0 && c.num_v_heads % c.num_k_heads == 0, ErrorCode::kInvalidArgument,
             name, ": ", c.num_v_heads, " value heads are not a multiple of ", c.num_k_heads, " key heads");
  HR_REQUIRE(c.head_k_dim > 0 && c.head_v_dim > 0, ErrorCode::kInvalidArgument, name, ": head dims are ", c.head_k_dim,
             " and ", c.head_v_dim, ", expected 1 or more");
  check_rank(name + ": conv_weight", c.conv_weight, 2);
  check_shape(name + ": conv_weight", c.conv_weight, {c.conv_dim(), c.conv_weight.dim(1)});
  check_shape(name + ": a_log", c.a_log, {c.num_v_heads});
  check_shape(name + ": dt_bias", c.dt_bias, {c.num_v_heads});
  check_dtype(name + ": a_log", c.a_log, DType::kF32);
  check_dtype(name + ": dt_bias", c.dt_bias, DType::kF32);
}

RadixLinearAttention::RadixLinearAttention(const RadixLinearAttentionConfig& config, const AttentionBackend& backend)
    : RadixLinearAttention(config) {
  backend.require(config_);
}

void RadixLinearAttention::forward(const ForwardBatch& batch, const GDNInputs& in, const TensorView& out) const {
  HR_REQUIRE(batch.attn_backend != nullptr, ErrorCode::kInvalidArgument, "gdn layer ", config_.layer_id,
             ": the batch has no attention backend");
  const TensorView heads = out.rank() == 2 ? out.reshape({out.dim(0), config_.num_v_heads, config_.head_v_dim}) : out;
  batch.attn_backend->forward_gdn(*this, in, batch, heads);
}

}  // namespace headrace
