// Interface of attention over a ragged batch. The engine chooses a backend once; layers reach it through the batch and
// never name one.
#pragma once
#include <string>
#include <string_view>

#include "headrace/attention/attn_metadata_source.h"
#include "headrace/attention/radix_attention.h"
#include "headrace/attention/radix_linear_attention.h"

namespace headrace {

class CudaGraphSupport;

// Implementations, on a CPU and on a device. kGrouped is the default and the only one whose performance is reported.
enum class AttnImpl : uint8_t { kReference, kOptimized, kGrouped };
std::string_view name_of(AttnImpl impl);  // "reference", "optimized", "grouped"
// Parses one of these names, or Diffulex's naive, triton, triton_grouped. Error kUnsupported for others.
AttnImpl attn_impl_from(std::string_view name);

struct AttnInputs {
  TensorView q = {};          // [num_tokens, num_heads, head_dim]; null: k and v are only stored
  TensorView k = {}, v = {};  // [rows, num_kv_heads, head_dim or v_head_dim], or both null
  RadixAttentionOptions options = {};
};

// Not thread-safe: one backend serves one engine and one device stream.
class AttentionBackend {
 public:
  AttentionBackend() = default;
  AttentionBackend(const AttentionBackend&) = delete;
  AttentionBackend& operator=(const AttentionBackend&) = delete;
  virtual ~AttentionBackend() = default;

  virtual std::string_view name() const = 0;                          // name in the registry, or "hybrid"
  virtual std::string describe() const = 0;                           // one line for run reports: the kernels
  virtual CudaGraphSupport* cuda_graph_support() { return nullptr; }  // null if it supports no graphs

  // Error kUnsupported for a layer that this backend cannot run; the text names what is built. Layers made for a
  // backend call it.
  virtual void require(const RadixAttentionConfig&) const {}
  virtual void require(const RadixLinearAttentionConfig&) const {}

  // Validates and plans `batch`, and installs its metadata in the source. Call once per batch, before its first
  // forward(); the batch must stay alive and unchanged until its last. Error kInvalidArgument as
  // AttnMetadata::validate, and as AttnMetadataSource::check_warm_up.
  void init_forward_metadata(const ForwardBatch& batch);
  // The source of the planned batch's metadata.
  virtual AttnMetadataSource& metadata_source() { return source_; }

  // Stores K and V of tokens with a write slot, then computes out[t] = softmax(scaling * q[t] K^T) V over the keys that
  // the batch's spans and the layer's window show to token t.
  // out: [num_tokens, num_heads, v_head_dim], dtype of q; zeros if the batch is idle, and then nothing is stored. Null
  // exactly if in.q is.
  // Error kInvalidArgument (shape, dtype, a batch that was not planned, a layer without a cache), kUnsupported (this
  // backend cannot run the layer); AttnMetadataSource::check_warm_up.
  void forward(const RadixAttention& layer, const AttnInputs& in, const ForwardBatch& batch, const TensorView& out);

  // Runs the gated delta rule of one layer, then in.norm, and updates the states in place. out: [num_tokens,
  // num_v_heads, head_v_dim]; zeros if the batch is idle. Error kUnsupported on every backend but HybridAttnBackend.
  void forward_gdn(const RadixLinearAttention& layer, const GDNInputs& in, const ForwardBatch& batch,
                   const TensorView& out);

 private:
  virtual void validate(const ForwardBatch& batch) const { batch.attn.validate(0); }
  virtual void plan(const ForwardBatch& batch) = 0;  // of a validated batch
  // Makes `batch` the planned one: forward() accepts it, and the source fetches its metadata.
  void set_planned(const ForwardBatch& batch);
  // Error kInvalidArgument unless `batch` is the planned one and may store what it stores.
  void check_planned(const ForwardBatch& batch, std::string_view kind, int32_t layer_id);
  virtual DeviceRuntime& runtime() { return cpu_runtime(); }  // device of inputs and outputs
  // Called by forward() after it has checked the plan, the shapes and the mode.
  virtual void forward_extend(const RadixAttention& layer, const AttnInputs& in, const ForwardBatch& batch,
                              const TensorView& out) = 0;
  virtual void forward_decode(const RadixAttention& layer, const AttnInputs& in, const ForwardBatch& batch,
                              const TensorView& out) = 0;
  virtual void run_gdn(const RadixLinearAttention& layer, const GDNInputs& in, const ForwardBatch& batch,
                       const TensorView& out);

  friend class HybridAttnBackend;          // calls private functions of the backends that it owns
  const ForwardBatch* planned_ = nullptr;  // not owned
  AttnMetadataSource source_;
};

}  // namespace headrace
