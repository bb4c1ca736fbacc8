// Attention backend over one ops table: the common part of the reference, CPU and CUDA backends.
#pragma once
#include <map>

#include "headrace/attention/attention.h"
#include "headrace/attention/attention_backend.h"
#include "headrace/cache/kv_pool.h"

namespace headrace {

// Runs the Attention of each layer over one KVPool, made when the layer first runs. Threads as AttentionBackend.
class OpSetBackend : public AttentionBackend {
 public:
  // `ops` (those of attn_impl), `pool` and `runtime` are not owned and outlive the backend.
  OpSetBackend(std::string_view name, const OpSet& ops, const KVPool& pool, const OpContext& context,
               AttnImpl attn_impl = AttnImpl::kGrouped, DeviceRuntime& runtime = cpu_runtime());

  std::string_view name() const override { return name_; }
  std::string describe() const override;
  using AttentionBackend::require;
  void require(const RadixAttentionConfig& layer) const override;

 protected:
  // CudaGraphSupport::kv_len_buckets, from the ops table.
  std::vector<int32_t> kv_len_buckets_of(const ForwardBatch& batch, const RadixAttentionConfig& layer,
                                         DType dtype) const;

 private:
  struct Layer {
    RadixAttentionConfig config;
    Attention attention;
  };
  void validate(const ForwardBatch& batch) const override;
  void plan(const ForwardBatch& batch) override;
  void forward_extend(const RadixAttention& layer, const AttnInputs& in, const ForwardBatch& batch,
                      const TensorView& out) override;
  void forward_decode(const RadixAttention& layer, const AttnInputs& in, const ForwardBatch& batch,
                      const TensorView& out) override {
    forward_extend(layer, in, batch, out);  // a decode row is an extend of one token
  }

  DeviceRuntime& runtime() override { return runtime_; }
  Attention attention_of(const RadixAttentionConfig& layer);
  const Attention& find_attention(const RadixAttentionConfig& layer);
  Tensor with_rope(const TensorView& x, const TensorView& rope) const;
  void copy_heads(const TensorView& from, const TensorView& to) const;

  std::string_view name_;
  const OpSet& ops_;
  const KVPool& pool_;
  OpContext context_;
  AttnImpl attn_impl_;
  DeviceRuntime& runtime_;
  Tensor one_;                       // float32 [1]
  std::map<int32_t, Layer> layers_;  // by layer id
};

}  // namespace headrace
