#include "headrace/layers/self_attention.h"

#include <array>
#include <cmath>
#include <utility>

namespace headrace {
namespace {

// One of q, k and v: its own tensor, or rows [at, at + rows) of the fused one.
Linear rows_projection(const WeightScope& scope, const char* name, const SelfAttentionConfig& c, int64_t at,
                       int64_t rows) {
  if (c.projections == SelfAttentionConfig::Projections::kSeparate) {
    return Linear(scope, name, rows, c.hidden, c.qkv_bias);
  }
  const WeightScope fused = scope.scope("qkv_proj");
  const int64_t all = c.q_rows() + 2 * c.kv_rows();
  const TensorView bias = c.qkv_bias == HasBias::kYes ? fused.tensor("bias", {all}).slice(at, at + rows) : TensorView();
  return Linear(fused.weight("weight", {all, c.hidden}).slice(at, at + rows), bias);
}

// Lays the projections' weights out contiguously; returns the configuration.
const SelfAttentionConfig& placed(const WeightScope& scope, const SelfAttentionConfig& c) {
  if (c.projections == SelfAttentionConfig::Projections::kSeparate) {
    place_together(scope,
                   std::array{LinearRows{"q_proj", c.q_rows()}, LinearRows{"k_proj", c.kv_rows()},
                              LinearRows{"v_proj", c.kv_rows()}},
                   c.hidden, c.qkv_bias);
  }
  return c;
}

}  // namespace

RadixAttentionConfig SelfAttentionConfig::attention() const {
  return {.num_heads = num_heads,
          .head_dim = head_dim,
          .scaling = 1.0f / std::sqrt(static_cast<float>(head_dim)),
          .num_kv_heads = num_kv_heads,
          .layer_id = layer_id,
          .sliding_window_size = sliding_window};
}

SelfAttention::SelfAttention(const WeightScope& scope, const SelfAttentionConfig& c, const RotaryEmbedding& rotary)
    : config_(placed(scope, c)),
      q_proj_(rows_projection(scope, "q_proj", c, 0, c.q_rows())),
      k_proj_(rows_projection(scope, "k_proj", c, c.q_rows(), c.kv_rows())),
      v_proj_(rows_projection(scope, "v_proj", c, c.q_rows() + c.kv_rows(), c.kv_rows())),
      o_proj_(scope, "o_proj", c.hidden, int64_t{c.num_heads} * c.head_dim, c.o_bias),
      rotary_(&rotary),
      attention_(c.attention()) {
  if (c.qk_norm == SelfAttentionConfig::QKNorm::kNo) return;
  q_norm_.emplace(scope, "q_norm", c.head_dim, c.eps, c.norm_form);
  k_norm_.emplace(scope, "k_norm", c.head_dim, c.eps, c.norm_form);
}

NormRotaryArgs SelfAttention::norm_rotary(const TensorView& positions) const {
  return {.q_weight = q_norm_ ? q_norm_->weight() : TensorView(),
          .k_weight = k_norm_ ? k_norm_->weight() : TensorView(),
          .eps = config_.eps,
          .weight_form = config_.norm_form,
          .positions = positions,
          .inv_freq = rotary_->inv_freq(),
          .magnitude = rotary_->magnitude()};
}

void SelfAttention::add_to(const LayerContext& context, const RMSNorm& norm, const TensorView& x,
                           const ForwardBatch& batch) const {
  const int64_t tokens = x.dim(0), heads = config_.num_heads, dim = config_.head_dim;
  const bool gated = config_.output_gate == SelfAttentionConfig::OutputGate::kYes;
  const int64_t q_rows = config_.q_rows(), kv_rows = config_.kv_rows();
  // Results have the layout of the weights. Gates are read as part of each head's row, so gated queries need a separate
  // tensor.
  const Tensor apart = gated ? context.make({tokens, q_rows}) : Tensor();
  const Tensor results = context.make({tokens, (gated ? 0 : q_rows) + 2 * kv_rows});
  const int64_t all = results.dim(1);
  const TensorView queries = gated ? apart.view() : results.view().narrow(1, 0, q_rows),
                   keys = results.view().narrow(1, all - 2 * kv_rows, all - kv_rows),
                   v = results.view().narrow(1, all - kv_rows, all);
  FusedLinearArgs projections = norm.before_products(x);
  projections.products = {q_proj_.product(queries), k_proj_.product(keys), v_proj_.product(v)};
  projections.num_products = 3;
  add_gemm(context, projections);
  run_gemms(context);
  const TensorView per_head = queries.reshape({tokens, heads, gated ? 2 * dim : dim});
  const TensorView q = per_head.narrow(2, 0, dim), k = keys.reshape({tokens, config_.num_kv_heads, dim});
  Tensor out = context.make({tokens, heads * dim});
  attention_.forward(
      q, k, v, batch, out,
      {.norm_rotary = norm_rotary(batch.positions), .gate = gated ? per_head.narrow(2, dim, 2 * dim) : TensorView()});
  const FusedLinearArgs output{.x = out, .products = {o_proj_.product(x)}, .residual = x};
  add_gemm(context, output, std::move(out));
}

void SelfAttention::store(const LayerContext& context, const RMSNorm& norm, const TensorView& x,
                          const ForwardBatch& batch) const {
  const int64_t tokens = x.dim(0), kv_rows = config_.kv_rows();
  const Tensor results = context.make({tokens, 2 * kv_rows});
  const TensorView k = results.view().narrow(1, 0, kv_rows), v = results.view().narrow(1, kv_rows, 2 * kv_rows);
  FusedLinearArgs projections = norm.before_products(x);
  projections.products = {k_proj_.product(k), v_proj_.product(v)};
  projections.num_products = 2;
  add_gemm(context, projections);
  run_gemms(context);
  attention_.forward({}, k, v, batch, {}, {.norm_rotary = norm_rotary(batch.positions)});
}

}  // namespace headrace
