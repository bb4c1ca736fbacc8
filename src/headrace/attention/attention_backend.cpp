#include "headrace/attention/attention_backend.h"

#include "headrace/core/device_runtime.h"

namespace headrace {
namespace {

void write_zeros(const TensorView& out, DeviceRuntime& runtime) {
  HR_REQUIRE(out.is_contiguous(), ErrorCode::kUnsupported, "idle batch: out must be dense");
  if (out.bytes() > 0) runtime.fill_zero(out.data(), static_cast<size_t>(out.bytes()));
}

void check_heads(const RadixAttention& layer, const char* name, const TensorView& x, int64_t heads, int64_t dim) {
  HR_REQUIRE(x.rank() == 3 && x.dim(1) == heads && x.dim(2) == dim, ErrorCode::kInvalidArgument, "attention layer ",
             layer.layer_id(), ": ", name, " has shape ", x.shape(), ", expected [rows, ", heads, ", ", dim, "]");
}

void check_inputs(const RadixAttention& layer, const AttnInputs& in, const TensorView& out) {
  const RadixAttentionOptions& o = in.options;
  const int64_t rope = o.q_rope ? o.q_rope.dim(2) : 0, head_dim = layer.qk_head_dim() - rope;
  HR_REQUIRE(static_cast<bool>(in.k) == static_cast<bool>(in.v), ErrorCode::kInvalidArgument, "attention layer ",
             layer.layer_id(), in.k ? ": k is given without v" : ": v is given without k");
  HR_REQUIRE(static_cast<bool>(o.q_rope) == static_cast<bool>(o.k_rope) || !in.k, ErrorCode::kInvalidArgument,
             "attention layer ", layer.layer_id(), ": q_rope and k_rope go together");
  if (in.q) check_heads(layer, "q", in.q, layer.tp_q_head_num(), head_dim);
  HR_REQUIRE(in.q || (in.k && !out && !o.gate && !o.lse && !o.q_rope && !o.k_rope), ErrorCode::kInvalidArgument,
             "attention layer ", layer.layer_id(),
             ": without q k and v are stored alone: expected no out, gate, lse or rope part beside them");
  if (in.k) check_heads(layer, "k", in.k, layer.tp_k_head_num(), head_dim);
  if (in.v) check_heads(layer, "v", in.v, layer.tp_v_head_num(), layer.v_head_dim());
  if (in.q) check_heads(layer, "out", out, layer.tp_q_head_num(), layer.v_head_dim());
  HR_REQUIRE(!o.norm_rotary || (in.k && !o.q_rope), ErrorCode::kInvalidArgument, "attention layer ", layer.layer_id(),
             ": norm_rotary is given ", in.k ? "with q_rope" : "without k");
  if (o.gate) check_heads(layer, "gate", o.gate, layer.tp_q_head_num(), layer.v_head_dim());
  if (o.q_rope) check_heads(layer, "q_rope", o.q_rope, layer.tp_q_head_num(), rope);
  if (o.k_rope) check_heads(layer, "k_rope", o.k_rope, layer.tp_k_head_num(), rope);
}

}  // namespace

void AttentionBackend::init_forward_metadata(const ForwardBatch& batch) {
  planned_ = nullptr;
  validate(batch);
  plan(batch);
  set_planned(batch);
}

void AttentionBackend::set_planned(const ForwardBatch& batch) {
  AttnMetadataSource& source = metadata_source();
  source.check_warm_up(batch.attn);
  source.set_fetch_fn_for_attn_metadata([&batch]() -> const AttnMetadata& { return batch.attn; });
  planned_ = &batch;
}

void AttentionBackend::check_planned(const ForwardBatch& batch, std::string_view kind, int32_t layer_id) {
  HR_REQUIRE(planned_ == &batch, ErrorCode::kInvalidArgument, kind, " layer ", layer_id, ": backend '", name(),
             "' has no plan for this batch; call init_forward_metadata first");
  metadata_source().check_warm_up(batch.attn);
}

void AttentionBackend::forward(const RadixAttention& layer, const AttnInputs& in, const ForwardBatch& batch,
                               const TensorView& out) {
  check_inputs(layer, in, out);
  if (batch.mode == ForwardMode::kIdle) {
    if (out) write_zeros(out, runtime());
    return;
  }
  check_planned(batch, "attention", layer.layer_id());
  const int64_t rows = in.q ? in.q.dim(0) : in.k.dim(0), out_rows = out ? out.dim(0) : rows;
  HR_REQUIRE(rows == batch.num_tokens() && out_rows == rows, ErrorCode::kInvalidArgument, "attention layer ",
             layer.layer_id(), ": ", in.q ? "q" : "k", " has ", rows, " rows and out ", out_rows, ", the batch has ",
             batch.num_tokens(), " tokens");
  HR_REQUIRE(!in.k || (in.k.dim(0) == in.v.dim(0) && (in.k.dim(0) == rows || layer.is_cross_attention())),
             ErrorCode::kInvalidArgument, "attention layer ", layer.layer_id(), ": k has ", in.k.dim(0), " rows and v ",
             in.v.dim(0), ", the batch has ", batch.num_tokens(), " tokens");
  if (batch.num_tokens() == 0) return;
  if (batch.mode == ForwardMode::kDecode) {
    forward_decode(layer, in, batch, out);
  } else {
    forward_extend(layer, in, batch, out);
  }
}

void AttentionBackend::forward_gdn(const RadixLinearAttention& layer, const GDNInputs& in, const ForwardBatch& batch,
                                   const TensorView& out) {
  if (batch.mode == ForwardMode::kIdle) {
    write_zeros(out, runtime());
    return;
  }
  check_planned(batch, "gdn", layer.config().layer_id);
  run_gdn(layer, in, batch, out);
}

void AttentionBackend::run_gdn(const RadixLinearAttention& layer, const GDNInputs&, const ForwardBatch&,
                               const TensorView&) {
  throw Error(ErrorCode::kUnsupported, str("gdn layer ", layer.config().layer_id, ": backend '", name(),
                                           "' runs full attention only; use HybridAttnBackend with a GDNAttnBackend"));
}

}  // namespace headrace
