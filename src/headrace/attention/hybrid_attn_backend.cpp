#include "headrace/attention/hybrid_attn_backend.h"

#include <algorithm>
#include <utility>

namespace headrace {

HybridAttnBackend::HybridAttnBackend(std::unique_ptr<AttentionBackend> full_attn_backend,
                                     std::unique_ptr<GDNAttnBackend> gdn_backend,
                                     std::vector<int32_t> full_attn_layer_ids)
    : full_(std::move(full_attn_backend)),
      gdn_(std::move(gdn_backend)),
      full_attn_layer_ids_(std::move(full_attn_layer_ids)) {
  HR_REQUIRE(full_ && gdn_, ErrorCode::kInvalidArgument,
             "hybrid backend: both a full-attention and a GDN backend are needed");
  std::ranges::sort(full_attn_layer_ids_);
}

std::string HybridAttnBackend::describe() const { return str("hybrid of ", full_->describe(), ", ", gdn_->describe()); }

void HybridAttnBackend::plan(const ForwardBatch& batch) {
  full_->plan(batch);
  gdn_->init_forward_metadata(batch);
}

int32_t HybridAttnBackend::get_cuda_graph_seq_len_fill_value() const {
  return std::max(full_->cuda_graph_support()->get_cuda_graph_seq_len_fill_value(),
                  gdn_->get_cuda_graph_seq_len_fill_value());
}

void HybridAttnBackend::init_graph_state(int32_t max_bs, int32_t max_num_tokens) {
  full_->cuda_graph_support()->init_cuda_graph_state(max_bs, max_num_tokens);
  gdn_->init_cuda_graph_state(max_bs, max_num_tokens);
}

void HybridAttnBackend::plan_capture(const ForwardBatch& batch, int32_t bucket) {
  full_->cuda_graph_support()->init_forward_metadata_capture_cuda_graph(batch, bucket);
  gdn_->init_forward_metadata_capture_cuda_graph(batch, bucket);
  set_planned(batch);
}

void HybridAttnBackend::plan_replay(const ForwardBatch& batch, int32_t bucket) {
  full_->cuda_graph_support()->init_forward_metadata_replay_cuda_graph(batch, bucket);
  gdn_->init_forward_metadata_replay_cuda_graph(batch, bucket);
  set_planned(batch);
}

bool HybridAttnBackend::is_full(int32_t layer_id) const {
  return std::ranges::binary_search(full_attn_layer_ids_, layer_id);
}

void HybridAttnBackend::forward_extend(const RadixAttention& layer, const AttnInputs& in, const ForwardBatch& batch,
                                       const TensorView& out) {
  HR_REQUIRE(is_full(layer.layer_id()), ErrorCode::kInvalidArgument, "hybrid backend: layer ", layer.layer_id(),
             " is a GDN layer, but was called for full attention");
  full_->forward_extend(layer, in, batch, out);
}

void HybridAttnBackend::forward_decode(const RadixAttention& layer, const AttnInputs& in, const ForwardBatch& batch,
                                       const TensorView& out) {
  HR_REQUIRE(is_full(layer.layer_id()), ErrorCode::kInvalidArgument, "hybrid backend: layer ", layer.layer_id(),
             " is a GDN layer, but was called for full attention");
  full_->forward_decode(layer, in, batch, out);
}

void HybridAttnBackend::run_gdn(const RadixLinearAttention& layer, const GDNInputs& in, const ForwardBatch& batch,
                                const TensorView& out) {
  HR_REQUIRE(!is_full(layer.config().layer_id), ErrorCode::kInvalidArgument, "hybrid backend: layer ",
             layer.config().layer_id, " is a full-attention layer, but was called for Gated DeltaNet");
  gdn_->forward(layer, in, batch, out);
}

}  // namespace headrace
