// A model with its pools and its attention backend.
#pragma once
#include <array>
#include <memory>
#include <optional>
#include <string>

#include "headrace/attention/backend_registry.h"
#include "headrace/batch/device_batch.h"
#include "headrace/engine/cuda_graph_runner.h"
#include "headrace/engine/denoise_loop.h"
#include "headrace/engine/rows_in_flight.h"
#include "headrace/engine/token_occurrence.h"
#include "headrace/models/model.h"
#include "headrace/sampling/sampler.h"

namespace headrace {

struct RunnerConfig {
  std::string backend = "auto";
  std::optional<std::string> kernel_set;
  std::optional<AttnImpl> attn_impl;  // absent: the backend's own
  DeviceRuntime* runtime = nullptr;   // not owned; null: the CPU's
  OpContext context;
  int32_t num_pages = 0, page_size = 64;
  int32_t num_states = 1;
  int64_t max_tokens = 512;       // of one step
  std::optional<DType> kv_dtype;  // of keys and values in the cache; absent: that of activations
  enum class Graphs : uint8_t {
    kOff,
    kPreferred,  // steps run without where they cannot be recorded, and describe() says why
    kRequired,   // that is an error, and so is a strategy that has steps behind prompts which are not recorded
  } graphs = Graphs::kPreferred;
};

// What batches look like, known once there is a page table.
struct BatchLimits {
  int32_t max_requests = 1, max_context_len = 1;
  int64_t table_rows = 0, table_pages = 0;
  CudaGraphConfig::DecodeRows decode_rows = CudaGraphConfig::DecodeRows::kYes;  // whether single rows are decoded
  // Of the other steps; sizes beyond RunnerConfig::max_tokens are left out.
  RowGraphs rows, canvases;
  SegmentGraphs segments;
  // Blocks that the device goes on with by itself; both `sizes`, `page_size` and `max_requests` are the runner's to
  // set.
  std::optional<BlockLoopConfig> blocks;
  std::string host_because;  // where they are absent; empty for strategies that do not denoise
};

// Rows of logits that somebody keeps: [first, first + count) of a batch's.
struct KeptRows {
  int64_t first = 0, count = 0;
  Tensor* to = nullptr;  // not owned
};

// What becomes of a batch's rows of logits.
struct TokenChoice {
  int32_t vocab = 0;                         // ids that may be chosen
  std::optional<int32_t> excluded_id;        // of these
  std::span<const TokenDraw> draws;          // of each row
  std::span<const float> temperatures;       // that divide each row before everything else; empty: none does
  std::span<const PenalizedRows> penalized;  // then
  std::span<const KeptRows> kept;            // so changed
  Tensor* logits = nullptr;                  // becomes what run() returns; not owned
};

// Not thread-safe.
class ModelRunner {
 public:
  // `model` is not owned and outlives the runner. Errors as KVPool, GDNPool and make_backend.
  ModelRunner(const Model& model, const RunnerConfig& config);

  // Once, before the first batch: makes the device's tables and records graphs, on a device. Error kOutOfMemory, with
  // the reason, when graphs are required and there are none, or steps behind prompts are not recorded.
  void prepare(const BatchLimits& limits);

  AttentionBackend& backend() { return *backend_; }
  AttnMetadataSource& metadata_source() { return backend_->metadata_source(); }
  DType kv_dtype() const { return kv_->dtype(); }
  int64_t pool_bytes() const { return kv_->mem_bytes() + (gdn_ ? gdn_->mem_bytes() : 0); }
  bool on_cpu() const { return runtime_.device().type == DeviceType::kCPU; }
  // Steps that feed each other. Null on a CPU, without graphs, for a strategy that denoise_step cannot say, and where
  // the graphs are too small for all requests.
  DenoiseLoop* denoise_loop() { return loop_.get(); }
  // Why it is null on a device that denoises; empty otherwise.
  const std::string& host_because() const { return host_because_; }
  // Whether the loop can start with this batch.
  bool holds_blocks(const ForwardBatch& batch) const { return loop_ && graphs_->holds_rows(batch); }
  // Queues the batch, whose blocks the loop has loaded, or the next step, as the last one reported it.
  // `pages`: of each request, all that it will ever use; `most_keys`: that the next step's rows see, about.
  void start_blocks(const ForwardBatch& batch, std::span<const int64_t> pages);
  void next_blocks(const DenoiseReport& next, int32_t most_keys);

  int64_t num_graph_steps() const { return num_graph_steps_; }  // steps that were one launch
  // Why recording failed, so that all steps run without graphs; none where it did not.
  const std::optional<std::string>& failed_capture() const { return failed_capture_; }
  // The backend, and on a device the graphs or why there are none.
  std::string describe() const;

  // Recurrent states of all layers, by slot, before whatever runs next. Errors as GDNPool::copy_states.
  void copy_state(int32_t from, int32_t to) { gdn_->copy_states(from, to); }
  // Plans the batch, whose views are on the host, and runs the model: float32 [logits_rows, vocab] on the host.
  Tensor run(const ForwardBatch& batch);
  // Runs the batch and returns, for each of its rows of logits, the natural log-probability of next[row]. Computed
  // where the model runs. A row with a logit that is NaN has a NaN.
  std::vector<float> score(const ForwardBatch& batch, std::span<const int32_t> next);
  // The same where the model runs, which a token drawn for each row leaves, and what token_confidence says of the row.
  // `choice.draws` has one entry for each of the batch's logits_rows. Kept rows stay where the model runs,
  // float32 [count, vocab], rounded to the dtype that the model was trained to read them in. Two steps may be queued
  // at a time; the second one's input ids may be the tokens that the first one draws, row by row.
  enum class Inputs : uint8_t { kOfBatch, kLastTokens };
  void queue_tokens(const ForwardBatch& batch, const TokenChoice& choice, Inputs inputs = Inputs::kOfBatch);
  ChosenRows take_tokens();  // of the step that was queued first, when it is over
  size_t num_queued() const { return num_queued_; }

 private:
  // Sizes beyond what steps have are left out.
  CudaGraphConfig graph_config(const BatchLimits& limits) const;
  void capture(const BatchLimits& limits, const CudaGraphConfig& config);
  std::unique_ptr<DenoiseLoop> make_loop(const BatchLimits& limits, CudaGraphRunner& graphs,
                                         const std::vector<int32_t>& sizes, const std::vector<int32_t>& canvas_sizes);
  // Logits where the model runs. The tensor is set when they are not a graph's.
  struct Logits {
    Tensor owned;
    TensorView view;
  };
  // `ids` stand in for the batch's; null: its own.
  Logits forward(const ForwardBatch& batch, const TensorView& ids = {});
  void choose_tokens(const ForwardBatch& batch, const TokenChoice& choice, Inputs inputs);
  void draw_tokens(const RowsInFlight& rows, const TensorView& logits, const TokenChoice& choice) const;
  void penalize(const TensorView& logits, const TokenChoice& choice, const TensorView& last_ids);
  void divide_rows(const TensorView& logits, std::span<const float> temperatures) const;
  void keep_rows(const TensorView& logits, const KeptRows& kept) const;

  const Model& model_;
  RunnerConfig config_;
  DeviceRuntime& runtime_;  // not owned
  std::unique_ptr<KVPool> kv_;
  std::unique_ptr<GDNPool> gdn_;  // null for a model without recurrent states
  std::unique_ptr<AttentionBackend> backend_;
  const OpSet* ops_ = nullptr;           // not owned
  std::optional<TokenOccurrence> seen_;  // from the first penalty on
  std::array<RowsInFlight, 2> in_flight_{RowsInFlight(runtime_), RowsInFlight(runtime_)};
  size_t first_queued_ = 0, num_queued_ = 0;   // of these
  std::unique_ptr<DeviceBatch> device_batch_;  // these two are null on a CPU
  std::unique_ptr<CudaGraphRunner> graphs_;
  std::unique_ptr<DenoiseLoop> loop_;       // over memory of graphs_
  std::string host_because_;                // every denoise step goes through the host
  std::string no_graphs_ = "not prepared";  // why
  std::optional<std::string> failed_capture_;
  int64_t num_graph_steps_ = 0;
};

}  // namespace headrace
