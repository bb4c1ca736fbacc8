// Owns the KV and state pools, the attention backend and the CUDA graphs, and runs the model.
#pragma once
#include <array>
#include <memory>
#include <optional>
#include <string>

#include "headrace/attention/backend_registry.h"
#include "headrace/batch/device_batch.h"
#include "headrace/engine/cuda_graph_runner.h"
#include "headrace/engine/rows_in_flight.h"
#include "headrace/engine/step_gaps.h"
#include "headrace/engine/token_occurrence.h"
#include "headrace/models/model.h"
#include "headrace/sampling/sampler.h"

namespace headrace {

struct RunnerConfig {
  std::string backend = "auto";
  std::optional<std::string> kernel_set;
  std::optional<AttnImpl> attn_impl;  // absent: the backend's own
  const OpSet* ops = nullptr;         // kernels in place of the backend's; not owned; null: the backend's
  DeviceRuntime* runtime = nullptr;   // not owned; null: the CPU's
  OpContext context;
  int32_t num_pages = 0, page_size = 64;
  int32_t num_states = 1;
  int64_t max_tokens = 512;       // tokens of one step
  std::optional<DType> kv_dtype;  // of the KV cache; absent: that of activations
  enum class Graphs : uint8_t {
    kOff,
    kPreferred,  // steps that cannot be captured run without graphs, and describe() says why
    kRequired,   // error if capture fails, or if the strategy has decoding steps that are not captured
  } graphs = Graphs::kPreferred;
  bool times_gaps = false;  // see take_gaps()
};

// Limits of batches, known once the page table exists.
struct BatchLimits {
  int32_t max_requests = 1, max_context_len = 1;
  int64_t table_rows = 0, table_pages = 0;
  // kYes: the strategy decodes one token per step
  CudaGraphConfig::DecodeRows decode_rows = CudaGraphConfig::DecodeRows::kYes;
  // Graphs of the other steps; sizes above RunnerConfig::max_tokens are dropped.
  RowGraphs rows, canvases;
  SegmentGraphs segments;
};

// Copies rows [first, first + count) of a batch's logits to `to`.
struct KeptRows {
  int64_t first = 0, count = 0;
  Tensor* to = nullptr;  // not owned
};

// Options for sampling a batch's rows of logits. Rows are divided by `temperatures`, penalized, kept, then sampled.
struct TokenChoice {
  int32_t vocab = 0;                         // ids below this may be chosen
  std::optional<int32_t> excluded_id;        // never chosen: the mask token
  std::span<const TokenDraw> draws;          // [rows]
  std::span<const float> temperatures;       // [rows], divide each row's logits; empty: none
  std::span<const PenalizedRows> penalized;  // repetition penalties
  std::span<const KeptRows> kept;            // rows to keep, after the changes above
};

// Results that the engine wants from a step's rows of logits.
struct StepReads {
  std::optional<TokenChoice> choice = {};     // a token per row, sampled where the model runs
  std::span<const LogprobRow> logprobs = {};  // in the model's distribution, before `choice` changes the rows
  enum class Logits : uint8_t { kNone, kToHost } logits = Logits::kNone;  // kToHost: as the model returns them
};

struct StepResult {
  std::optional<ChosenRows> tokens;   // of `choice`
  std::vector<RowLogprobs> logprobs;  // of `logprobs`
  Tensor logits;                      // float32 [rows, vocab] on the host; null unless asked for
};

// Not thread-safe.
class ModelRunner {
 public:
  // `model` is not owned and outlives the runner. Errors as KVPool, GDNPool and make_backend.
  ModelRunner(const Model& model, const RunnerConfig& config);

  // Allocates the device's tables and captures graphs; does neither on a CPU. Call once, before the first batch. Error
  // kOutOfMemory, with the reason, if graphs are required and capture fails or decoding steps are not captured.
  void prepare(const BatchLimits& limits);

  AttentionBackend& backend() { return *backend_; }
  AttnMetadataSource& metadata_source() { return backend_->metadata_source(); }
  DType kv_dtype() const { return kv_->dtype(); }
  int64_t pool_bytes() const { return kv_->mem_bytes() + (gdn_ ? gdn_->mem_bytes() : 0); }
  bool on_cpu() const { return runtime_.device().type == DeviceType::kCPU; }
  int64_t num_graph_steps() const { return num_graph_steps_; }  // steps that ran as one graph launch
  // Why capture failed, so that all steps run without graphs; absent otherwise.
  const std::optional<std::string>& failed_capture() const { return failed_capture_; }
  // One line: the backend, and on a device the graphs or why there are none.
  std::string describe() const;

  // Copies the recurrent states of all layers between slots, before the next step runs. Errors as GDNPool::copy_states.
  void copy_state(int32_t from, int32_t to) { gdn_->copy_states(from, to); }
  // Plans the batch, whose views are on the host, and starts its forward pass. At most two steps may be in flight.
  // `from`, [tokens], for the second one: the index of the token, among those that the first one chooses, that is the
  // input; negative: the batch's id. Empty: the batch's ids.
  void launch(const ForwardBatch& batch, std::span<const int32_t> from = {});
  // Starts reading the newest step's rows of logits. Call it once for each step, before the next one is launched.
  // Tokens, their token_confidence results and log-probabilities are copied to the host without waiting; logits are
  // waited for. `choice.draws` has one entry per row of logits. Kept rows stay where the model runs, float32
  // [count, vocab], rounded to the dtype in which the model was trained to read them.
  void choose(const StepReads& reads);
  StepResult retire();  // waits for the oldest step in flight
  size_t num_in_flight() const { return num_in_flight_; }
  // Returns the seconds for which the device waited for the host in each step since the last call (StepGaps). Only with
  // RunnerConfig::times_gaps, and while no launch() or choose() has thrown.
  std::vector<double> take_gaps() { return gaps_->take(); }
  // Runs one step, and returns its logits.
  Tensor run(const ForwardBatch& batch);

 private:
  // Drops sizes above max_tokens.
  CudaGraphConfig graph_config(const BatchLimits& limits) const;
  void capture(const CudaGraphConfig& config);
  // Logits where the model runs. `owned` is null if they lie in a graph's memory.
  struct Logits {
    Tensor owned;
    TensorView view;
  };
  Logits forward(const ForwardBatch& batch, std::span<const int32_t> from);
  void take_tokens(const TensorView& ids, std::span<const int32_t> from) const;
  StepResult read(RowsInFlight& rows, Logits logits, const StepReads& reads);
  void choose_tokens(RowsInFlight& rows, const TensorView& logits, const StepReads& reads);
  void read_logprobs(const RowsInFlight& rows, const TensorView& logits, const StepReads& reads) const;
  void draw_tokens(const RowsInFlight& rows, const TensorView& logits, const TokenChoice& choice) const;
  void penalize(const TensorView& logits, const TokenChoice& choice);
  void divide_rows(const TensorView& logits, std::span<const float> temperatures) const;
  void keep_rows(const TensorView& logits, const KeptRows& kept) const;

  const Model& model_;
  RunnerConfig config_;
  DeviceRuntime& runtime_;  // not owned
  std::unique_ptr<KVPool> kv_;
  std::unique_ptr<GDNPool> gdn_;  // null for a model without recurrent states
  std::unique_ptr<AttentionBackend> backend_;
  const OpSet* ops_ = nullptr;           // not owned
  std::optional<TokenOccurrence> seen_;  // made with the first penalty
  std::array<RowsInFlight, 2> rows_{RowsInFlight(runtime_), RowsInFlight(runtime_)};
  std::array<StepResult, 2> results_;      // without what lies in rows_
  size_t oldest_ = 0, num_in_flight_ = 0;  // indices into rows_ and results_
  std::optional<StepGaps> gaps_;
  Logits newest_;  // of the newest step, until choose()
  int64_t newest_rows_ = 0;
  std::unique_ptr<DeviceBatch> device_batch_;  // null on a CPU, as graphs_
  std::unique_ptr<CudaGraphRunner> graphs_;
  std::string no_graphs_ = "not prepared";  // why graphs_ is null
  std::optional<std::string> failed_capture_;
  int64_t num_graph_steps_ = 0;
};

}  // namespace headrace
