// Steps as recorded graphs: one launch for a whole step.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "headrace/attention/attention_backend.h"
#include "headrace/attention/cuda_graph_support.h"
#include "headrace/batch/device_batch.h"
#include "headrace/engine/batch_padding.h"
#include "headrace/models/model.h"

namespace headrace {

// Steps whose requests have several rows: diffusion blocks, or short prompts among decode rows.
struct RowGraphs {
  std::vector<int32_t> sizes;  // rows of a step, ascending; empty: such steps run without
  int32_t most_rows = 1;       // of a request
  int32_t most_logits = 1;     // rows of logits of a step
  // What is recorded; a batch of the other kind runs without.
  DeviceMetadata::NewKeys new_keys = DeviceMetadata::NewKeys::kSomeNotStored;
};

struct CudaGraphConfig {
  int32_t max_requests = 1;
  enum class DecodeRows : uint8_t { kNo, kYes } decode_rows = DecodeRows::kYes;  // steps of one row for each request
  RowGraphs rows;
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

  // Recorded behind each step of RowGraphs, over its logits. Before capture().
  void end_rows_with(std::function<void(const TensorView& logits)> end) { end_rows_ = std::move(end); }
  // Makes pages known that no batch has referred to yet.
  void upload_pages(const TensorView& table, int32_t row, int64_t pages) {
    device_batch_.upload_pages(table, row, pages);
  }
  // What steps of RowGraphs read their batches from.
  DeviceBatch::Arrays arrays() const { return device_batch_.arrays(); }

  // Runs every size once as a warm-up and then records it, the largest first, so that the smaller ones find their
  // memory. Throws what a step throws, kUnsupported where graphs mean nothing, kCuda for what cannot be recorded; sizes
  // recorded before stay.
  void capture();

  // Whether a graph holds this batch: decode rows, one per request, each of which wants its logits; or some rows of
  // each request, within the limits of the configuration.
  bool holds(const ForwardBatch& batch) const { return holds_decode(batch) || holds_rows(batch); }
  // Runs it; `batch` has its views on the host. float32 [logits_rows, vocab] on the device, valid until the next run of
  // any graph of the device.
  TensorView run(const ForwardBatch& batch);

  // Whether run(batch) is a step of RowGraphs.
  bool holds_rows(const ForwardBatch& batch) const;
  // Runs the step of that many rows, one of RowGraphs::sizes, of which so many want logits, over what lies in arrays().
  void run_rows(int32_t size, int32_t logits_rows) { row_graph(size, logits_rows).graph->launch(); }

  std::string describe() const;  // "graphs for 1, 2, 4 requests and for steps of 8, 16 rows"

 private:
  struct Captured {
    std::unique_ptr<DeviceGraph> graph;
    TensorView logits;  // in memory that all graphs of the device share
  };
  using Graphs = std::map<int32_t, Captured>;        // by requests
  using RowsOfLogits = std::map<int32_t, Captured>;  // by how many there are
  Captured record(const ForwardBatch& on_device, const std::function<void(const TensorView& logits)>& end);
  void capture_decode();
  void capture_rows();
  // Padding alone, before it is filled up.
  ForwardBatch nothing(ForwardMode mode) const;
  bool plain(const ForwardBatch& batch) const;
  bool holds_decode(const ForwardBatch& batch) const;
  BatchPadding::Sizes sizes_of(int32_t rows, int32_t logits_rows) const;
  // The smallest graph of that many rows or more, and of that many rows of logits.
  const Captured& row_graph(int32_t rows, int32_t logits_rows) const;
  std::vector<int32_t> logits_sizes(int32_t rows) const;

  const Model& model_;
  AttentionBackend& backend_;
  DeviceRuntime& runtime_;
  CudaGraphConfig config_;
  DeviceBatch device_batch_;  // of all sizes: an array's address does not depend on how much of it is used
  Graphs graphs_;
  std::map<int32_t, RowsOfLogits> row_graphs_;  // by rows
  BatchPadding padding_;
  Tensor no_pages_;
  std::function<void(const TensorView& logits)> end_rows_ = [](const TensorView&) {};
};

}  // namespace headrace
