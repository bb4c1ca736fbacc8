#include "headrace/layers/gated_delta_net.h"

#include <array>
#include <cstring>
#include <utility>

namespace headrace {
namespace {

// Copies a small vector as float32 to the layer's device.
Tensor as_float(const WeightScope& scope, const char* name, int64_t count) {
  const TensorView x = scope.host_tensor(name, {count});
  Tensor copy(DType::kF32, x.shape());
  for (int64_t i = 0; i < count; ++i) set_element(copy, i, element_as_double(x, i));
  return copied_to(scope.runtime(), std::move(copy));
}

// Copies rows [from, from + count) of `source` to row `at` of `target`.
void copy_rows(const TensorView& source, int64_t from, int64_t count, const Tensor& target, int64_t at) {
  const TensorView rows = source.slice(from, from + count);
  std::memcpy(target.view().slice(at, at + count).data(), rows.data(), static_cast<size_t>(rows.bytes()));
}

// Rows [first, first + out) of the reordered copy, if there is one, else the checkpoint's tensor.
Linear projection(const WeightScope& scope, const char* name, const Tensor& copy, int64_t first, int64_t out,
                  int64_t in) {
  return copy ? Linear(copy.view().slice(first, first + out), {}) : Linear(scope, name, out, in);
}

// Lays the projections' weights out contiguously; returns the configuration.
const GatedDeltaNetConfig& placed_gdn(const WeightScope& scope, const GatedDeltaNetConfig& c) {
  if (c.layout == GatedDeltaNetConfig::Layout::kSeparate) {
    place_together(scope,
                   std::array{LinearRows{"in_proj_qkv", c.conv_dim()}, LinearRows{"in_proj_z", c.value_dim()},
                              LinearRows{"in_proj_b", c.num_v_heads}, LinearRows{"in_proj_a", c.num_v_heads}},
                   c.hidden);
  }
  return c;
}

}  // namespace

// Returns rows of queries, keys, values, gates z, b and a, each in the order of heads. Of the checkpoint's tensors key
// head g has rows [q | k | v of its value heads | z of these], and [b | a] of its value heads.
Tensor GatedDeltaNet::reorder(const WeightScope& scope, const GatedDeltaNetConfig& c) {
  if (c.layout == GatedDeltaNetConfig::Layout::kSeparate) return {};
  const int64_t dk = c.head_k_dim, r = c.num_v_heads / c.num_k_heads, dv = r * c.head_v_dim;
  const int64_t z = c.conv_dim(), b = z + c.value_dim(), a = b + c.num_v_heads;
  const TensorView qkvz = scope.scope("in_proj_qkvz").host_tensor("weight", {b, c.hidden});
  const TensorView ba = scope.scope("in_proj_ba").host_tensor("weight", {int64_t{2} * c.num_v_heads, c.hidden});
  HR_REQUIRE(qkvz.dtype() == ba.dtype(), ErrorCode::kModelFile, "in_proj_qkvz.weight is ", name_of(qkvz.dtype()),
             " and in_proj_ba.weight ", name_of(ba.dtype()), ", expected one dtype");
  Tensor all(qkvz.dtype(), {a + c.num_v_heads, c.hidden});
  for (int64_t g = 0; g < c.num_k_heads; ++g) {
    const int64_t row = g * (2 * dk + 2 * dv);
    copy_rows(qkvz, row, dk, all, g * dk);
    copy_rows(qkvz, row + dk, dk, all, c.key_dim() + g * dk);
    copy_rows(qkvz, row + 2 * dk, dv, all, 2 * c.key_dim() + g * dv);
    copy_rows(qkvz, row + 2 * dk + dv, dv, all, z + g * dv);
    copy_rows(ba, g * 2 * r, r, all, b + g * r);
    copy_rows(ba, g * 2 * r + r, r, all, a + g * r);
  }
  return copied_to(scope.runtime(), std::move(all));
}

GatedDeltaNet::GatedDeltaNet(const WeightScope& scope, const GatedDeltaNetConfig& c)
    : config_(placed_gdn(scope, c)),
      copy_(reorder(scope, c)),
      qkv_(projection(scope, "in_proj_qkv", copy_, 0, c.conv_dim(), c.hidden)),
      z_(projection(scope, "in_proj_z", copy_, c.conv_dim(), c.value_dim(), c.hidden)),
      b_(projection(scope, "in_proj_b", copy_, c.conv_dim() + c.value_dim(), c.num_v_heads, c.hidden)),
      a_(projection(scope, "in_proj_a", copy_, c.conv_dim() + c.value_dim() + c.num_v_heads, c.num_v_heads, c.hidden)),
      out_proj_(scope, "out_proj", c.hidden, c.value_dim()),
      a_log_(as_float(scope, "A_log", c.num_v_heads)),
      dt_bias_(as_float(scope, "dt_bias", c.num_v_heads)),
      norm_weight_(scope.scope("norm").tensor("weight", {c.head_v_dim}, {.mean = 1.0})),
      attention_({.layer_id = c.layer_id,
                  .gdn_layer_idx = c.gdn_layer_idx,
                  .num_k_heads = c.num_k_heads,
                  .num_v_heads = c.num_v_heads,
                  .head_k_dim = c.head_k_dim,
                  .head_v_dim = c.head_v_dim,
                  .conv_weight = scope.scope("conv1d")
                                     .tensor("weight", {c.conv_dim(), 1, c.conv_kernel}, {.stddev = 0.3})
                                     .reshape({c.conv_dim(), c.conv_kernel}),
                  .a_log = a_log_,
                  .dt_bias = dt_bias_}) {}

void GatedDeltaNet::add_to(const LayerContext& context, const RMSNorm& norm, const TensorView& x,
                           const ForwardBatch& batch) const {
  const int64_t tokens = x.dim(0), conv = config_.conv_dim(), value = config_.value_dim(), heads = config_.num_v_heads;
  // Results have the layout of the weights. Rows start at multiples of 16 bytes, as kernels require.
  const Tensor results = context.make({tokens, (conv + value + 2 * heads + 7) / 8 * 8});
  const auto columns = [&results](int64_t begin, int64_t count) {
    return results.view().narrow(1, begin, begin + count);
  };
  const TensorView mixed = columns(0, conv), z = columns(conv, value), b = columns(conv + value, heads),
                   a = columns(conv + value + heads, heads);
  FusedLinearArgs projections = norm.before_products(x);
  projections.products = {qkv_.product(mixed), z_.product(z), b_.product(b), a_.product(a)};
  projections.num_products = 4;
  add_gemm(context, projections);
  run_gemms(context);
  Tensor out = context.make({tokens, config_.num_v_heads, config_.head_v_dim});
  const GatedNorm gated{.gate = z.reshape(out.shape()), .weight = norm_weight_, .eps = config_.eps};
  attention_.forward(batch, {.mixed_qkv = mixed, .a = a, .b = b, .norm = gated}, out);
  const FusedLinearArgs output{
      .x = out.view().reshape({tokens, config_.value_dim()}), .products = {out_proj_.product(x)}, .residual = x};
  add_gemm(context, output, std::move(out));
}

}  // namespace headrace
