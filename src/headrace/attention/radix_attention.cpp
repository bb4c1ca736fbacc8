#include "headrace/attention/radix_attention.h"

#include "headrace/attention/attention_backend.h"

namespace headrace {
namespace {

void check(const RadixAttentionConfig& c) {
  const auto refuse = [&c](const char* field, auto found, const char* expected) {
    throw Error(ErrorCode::kInvalidArgument,
                str("attention layer ", c.layer_id, ": ", field, " is ", found, ", expected ", expected));
  };
  if (c.num_heads < 1) refuse("num_heads", c.num_heads, "1 or more");
  if (c.head_dim < 1) refuse("head_dim", c.head_dim, "1 or more");
  if (c.num_kv_heads < 1 || c.num_heads % c.num_kv_heads != 0) {
    refuse("num_kv_heads", c.num_kv_heads, "a divisor of num_heads");
  }
  if (c.layer_id < 0) refuse("layer_id", c.layer_id, "0 or more");
  if (!(c.logit_cap >= 0)) refuse("logit_cap", c.logit_cap, "0 (none) or more");
  if (c.v_head_dim && *c.v_head_dim < 1) refuse("v_head_dim", *c.v_head_dim, "1 or more, or absent");
  if (c.sliding_window_size && *c.sliding_window_size < 1) {
    refuse("sliding_window_size", *c.sliding_window_size, "1 or more (it counts the query's own key), or absent");
  }
}

// Views [rows, heads * dim] as [rows, heads, dim]; leaves 3-D views unchanged. The backend checks the sizes.
TensorView with_heads(const TensorView& x, int64_t heads) {
  if (!x || x.rank() != 2 || heads == 0 || x.dim(1) % heads != 0) return x;
  return x.reshape({x.dim(0), heads, x.dim(1) / heads});
}

}  // namespace

RadixAttention::RadixAttention(const RadixAttentionConfig& config) : config_(config) { check(config); }
RadixAttention::RadixAttention(const RadixAttentionConfig& config, const AttentionBackend& backend)
    : RadixAttention(config) {
  backend.require(config_);
}

void RadixAttention::forward(const TensorView& q, const TensorView& k, const TensorView& v, const ForwardBatch& batch,
                             const TensorView& out, const RadixAttentionOptions& options) const {
  HR_REQUIRE(batch.attn_backend != nullptr, ErrorCode::kInvalidArgument, "attention layer ", layer_id(),
             ": the batch has no attention backend");
  batch.attn_backend->forward(*this,
                              {.q = with_heads(q, tp_q_head_num()),
                               .k = with_heads(k, tp_k_head_num()),
                               .v = with_heads(v, tp_v_head_num()),
                               .options = options},
                              batch, with_heads(out, tp_q_head_num()));
}

std::string RadixAttention::extra_repr() const {
  std::string text =
      str("layer ", layer_id(), ": ", config_.num_heads, "/", config_.num_kv_heads, " heads of ", config_.head_dim);
  if (v_head_dim() != qk_head_dim()) text += str(" (v ", v_head_dim(), ")");
  text += str(", scaling ", config_.scaling);
  if (config_.logit_cap > 0) text += str(", cap ", config_.logit_cap);
  if (config_.sliding_window_size) text += str(", window ", *config_.sliding_window_size);
  if (is_cross_attention()) text += ", cross-attention";
  if (config_.attn_type != AttentionType::kDecoder) text += str(", ", name_of(config_.attn_type));
  return text;
}

}  // namespace headrace
