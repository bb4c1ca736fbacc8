// Routes each layer of a hybrid model: full attention to one backend, Gated DeltaNet to the other.
#pragma once
#include <memory>
#include <vector>

#include "headrace/attention/attention_backend.h"
#include "headrace/attention/gdn_attn_backend.h"

namespace headrace {

// Owns both backends. Error kInvalidArgument for a layer id of the other kind. Threads as AttentionBackend.
class HybridAttnBackend final : public AttentionBackend, public CudaGraphSupport {
 public:
  // `full_attn_layer_ids`: global ids of the full-attention layers.
  HybridAttnBackend(std::unique_ptr<AttentionBackend> full_attn_backend, std::unique_ptr<GDNAttnBackend> gdn_backend,
                    std::vector<int32_t> full_attn_layer_ids);

  std::string_view name() const override { return "hybrid"; }
  std::string describe() const override;
  void require(const RadixAttentionConfig& layer) const override { full_->require(layer); }
  void require(const RadixLinearAttentionConfig& layer) const override { gdn_->require(layer); }
  // Null if the full-attention backend supports no graphs.
  CudaGraphSupport* cuda_graph_support() override { return full_->cuda_graph_support() != nullptr ? this : nullptr; }
  // A length that suits both backends: the larger one.
  int32_t get_cuda_graph_seq_len_fill_value() const override;
  std::vector<int32_t> kv_len_buckets(const ForwardBatch& batch, const RadixAttentionConfig& layer,
                                      DType dtype) const override {
    return full_->cuda_graph_support()->kv_len_buckets(batch, layer, dtype);
  }
  AttnMetadataSource& metadata_source() override { return full_->metadata_source(); }
  const AttentionBackend& full_attn_backend() const { return *full_; }
  const GDNAttnBackend& gdn_backend() const { return *gdn_; }

 private:
  void init_graph_state(int32_t max_bs, int32_t max_num_tokens) override;
  void plan_capture(const ForwardBatch& batch, int32_t bucket) override;
  void plan_replay(const ForwardBatch& batch, int32_t bucket) override;
  void validate(const ForwardBatch& batch) const override { full_->validate(batch); }
  void plan(const ForwardBatch& batch) override;
  DeviceRuntime& runtime() override { return full_->runtime(); }
  void forward_extend(const RadixAttention& layer, const AttnInputs& in, const ForwardBatch& batch,
                      const TensorView& out) override;
  void forward_decode(const RadixAttention& layer, const AttnInputs& in, const ForwardBatch& batch,
                      const TensorView& out) override;
  void run_gdn(const RadixLinearAttention& layer, const GDNInputs& in, const ForwardBatch& batch,
               const TensorView& out) override;
  bool is_full(int32_t layer_id) const;

  std::unique_ptr<AttentionBackend> full_;
  std::unique_ptr<GDNAttnBackend> gdn_;
  std::vector<int32_t> full_attn_layer_ids_;  // sorted
};

}  // namespace headrace
