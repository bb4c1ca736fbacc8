// A model with its pools and its attention backend.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "headrace/attention/attn_metadata_source.h"
#include "headrace/attention/backend_registry.h"
#include "headrace/batch/device_batch.h"
#include "headrace/models/model.h"

namespace headrace {

struct RunnerConfig {
  std::string backend = "auto";
  std::optional<std::string> kernel_set;
  DeviceRuntime* runtime = nullptr;  // not owned; null: the CPU's
  OpContext context;
  int32_t num_pages = 0, page_size = 64;
  int32_t num_states = 1;
  int64_t max_tokens = 512;  // of one step
};

// Not thread-safe.
class ModelRunner {
 public:
  // `model` is not owned and outlives the runner. Errors as KVPool, GDNPool and make_backend.
  ModelRunner(const Model& model, const RunnerConfig& config);

  AttentionBackend& backend() { return *backend_; }
  AttnMetadataSource& metadata_source() { return source_; }
  int64_t pool_bytes() const { return kv_->mem_bytes() + (gdn_ ? gdn_->mem_bytes() : 0); }

  // Plans the batch, whose views are on the host, and runs the model: float32 [logits_rows, vocab] on the host.
  Tensor run(const ForwardBatch& batch);

 private:
  const ForwardBatch& on_device(const ForwardBatch& batch);

  const Model& model_;
  DeviceRuntime& runtime_;  // not owned
  int64_t max_tokens_;
  std::unique_ptr<KVPool> kv_;
  std::unique_ptr<GDNPool> gdn_;  // null for a model without recurrent states
  std::unique_ptr<AttentionBackend> backend_;
  std::unique_ptr<DeviceBatch> device_batch_;  // of a device: made for the first batch, whose tables give its size
  AttnMetadataSource source_;
};

}  // namespace headrace
