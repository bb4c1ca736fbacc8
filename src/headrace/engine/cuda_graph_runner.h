// Decode steps as recorded graphs: one launch for a whole step.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "headrace/attention/attention_backend.h"
#include "headrace/attention/cuda_graph_support.h"
#include "headrace/batch/device_batch.h"
#include "headrace/engine/batch_padding.h"
#include "headrace/models/model.h"

namespace headrace {

struct CudaGraphConfig {
  int32_t max_requests = 1;
  int64_t table_rows = 0, table_pages = 0;  // of the page table that batches refer to
  int64_t page_size = 1;                    // tokens
  BatchPadding::States states = BatchPadding::States::kNone;
};

// A batch runs in the smallest graph that holds it; rows past its end are padding, which is neither stored nor kept
// (kDoNotStore, kNoState). Not thread-safe.
class CudaGraphRunner {
 public:
  // None is owned; all outlive the runner, and so does the memory of their pools. Records nothing yet.
  CudaGraphRunner(const Model& model, AttentionBackend& backend, DeviceRuntime& runtime, const CudaGraphConfig& config);

  // Runs every size once as a warm-up and then records it, the largest first, so that the smaller ones find their
  // memory. Throws what a step throws, kUnsupported where graphs mean nothing, kCuda for what cannot be recorded; sizes
  // recorded before stay.
  void capture();

  // Whether a graph holds this batch: decode rows, one per request, each of which wants its logits.
  bool holds(const ForwardBatch& batch) const;
  // Runs it; `batch` has its views on the host. float32 [requests, vocab] on the device, valid until the next run.
  TensorView run(const ForwardBatch& batch);

  size_t num_graphs() const { return graphs_.size(); }
  std::string describe() const;  // "graphs for 1, 2, 4 requests"

 private:
  struct Captured {
    std::unique_ptr<DeviceGraph> graph;
    Tensor logits;
  };
  Captured record(const ForwardBatch& on_device, int32_t bucket);

  const Model& model_;
  AttentionBackend& backend_;
  DeviceRuntime& runtime_;
  CudaGraphConfig config_;
  DeviceBatch device_batch_;  // of all sizes: an array's address does not depend on how much of it is used
  std::map<int32_t, Captured> graphs_;
  BatchPadding padding_;
  Tensor no_pages_;
};

}  // namespace headrace
