// Gated DeltaNet over pooled states. Used only through HybridAttnBackend, which owns one beside a full-attention
// backend.
#pragma once
#include <vector>

#include "headrace/attention/attention_backend.h"
#include "headrace/attention/cuda_graph_support.h"
#include "headrace/cache/gdn_pool.h"
#include "headrace/core/workspace.h"

namespace headrace {

struct OpSet;

// On the host; kernels read the batch's device arrays. The memory stays where it is from init_cuda_graph_state() on.
struct GDNForwardMetadata {
  std::vector<int64_t> cache_indices = {};  // [requests]: the state slot that each request writes
  std::vector<int64_t> cu_seqlens = {};     // [requests + 1]: first row of each request; empty for a decode batch
};

// Not thread-safe, as AttentionBackend.
class GDNAttnBackend final : public CudaGraphSupport {
 public:
  // `ops`, `pool` and `runtime` are not owned and outlive the backend. `max_tokens` sizes the workspace.
  GDNAttnBackend(const GDNPool& pool, const OpSet& ops, const OpContext& context, int64_t max_tokens,
                 DeviceRuntime& runtime = cpu_runtime());

  // Returns the bytes of the workspace for steps of max_tokens tokens.
  static int64_t bytes_for(const GDNPoolConfig& pool, int64_t max_tokens);

  std::string describe() const;
  void require(const RadixLinearAttentionConfig& layer) const;  // as AttentionBackend
  // Plans the batch. Error kInvalidArgument if it has more than max_tokens tokens, or no state slots.
  void init_forward_metadata(const ForwardBatch& batch);
  const GDNForwardMetadata& forward_metadata() const { return metadata_; }

  // As AttentionBackend::forward_gdn.
  void forward(const RadixLinearAttention& layer, const GDNInputs& in, const ForwardBatch& batch,
               const TensorView& out);

 private:
  void init_graph_state(int32_t max_bs, int32_t max_num_tokens) override;
  void plan_capture(const ForwardBatch& batch, int32_t) override { init_forward_metadata(batch); }
  void plan_replay(const ForwardBatch& batch, int32_t) override { init_forward_metadata(batch); }
  // Returns false, without effect, if there is no fused kernel for the call.
  bool forward_fused(const RadixLinearAttention& layer, const GDNInputs& in, const ForwardBatch& batch,
                     const TensorView& out) const;

  const GDNPool& pool_;
  const OpSet& ops_;
  OpContext context_;
  int64_t max_tokens_;
  bool one_token_each_ = false;  // the planned batch has one token per request
  Workspace workspace_;          // holds the convolution's output
  GDNForwardMetadata metadata_;
};

}  // namespace headrace
