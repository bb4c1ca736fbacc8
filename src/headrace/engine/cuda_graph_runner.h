// Captures a model's steps as CUDA graphs and replays them, one launch per step.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "headrace/attention/attention_backend.h"
#include "headrace/attention/cuda_graph_support.h"
#include "headrace/batch/device_batch.h"
#include "headrace/core/device_runtime.h"
#include "headrace/engine/batch_padding.h"
#include "headrace/models/model.h"

namespace headrace {

// Graphs of steps whose requests have several tokens: diffusion blocks, whole canvases, or short prompts beside decode
// tokens.
struct RowGraphs {
  std::vector<int32_t> sizes;              // tokens of a step, ascending; empty: such steps run without graphs
  int32_t most_rows = 1;                   // tokens of one request
  int32_t most_logits = 1;                 // rows of logits of one step
  std::optional<int32_t> few_logits = {};  // logits rows of most steps, if fewer: each size is captured for these too
  // The kind of batches to capture. kSomeNotStored graphs also run batches that store every new key, not vice versa.
  DeviceMetadata::NewKeys new_keys = DeviceMetadata::NewKeys::kSomeNotStored;
  // kSome: the strategy also has steps with soft embeddings; those run without graphs.
  enum class Mixtures : uint8_t { kNone, kSome } mixtures = Mixtures::kNone;
};

// Graphs of steps whose requests each run keys.q_len tokens behind their cached text. All of these tokens have logits,
// none is stored.
struct SegmentGraphs {
  std::vector<int32_t> requests;  // requests of a step, ascending; empty: such steps run without graphs
  KeySpan keys;                   // template; position and cached length differ per request
  int64_t conditioning = 0;       // columns of SelfConditioning logits, taken by all tokens or none; 0: never
};

struct CudaGraphConfig {
  int32_t max_requests = 1;
  enum class DecodeRows : uint8_t { kNo, kYes } decode_rows = DecodeRows::kYes;  // one token per request
  RowGraphs rows;
  // Steps that run whole requests, from the first token to the last, possibly beside blocks, and are too large for
  // `rows`. A token sees about as many keys as the step has tokens. Graphs captured for kSomeNotStored serve both kinds
  // of batches.
  RowGraphs canvases = {};
  SegmentGraphs segments = {};
  int64_t table_rows = 0, table_pages = 0;  // page table of the batches
  int64_t page_size = 1;                    // tokens
  BatchPadding::States states = BatchPadding::States::kNone;
  // KV-length buckets. Steps of few requests whose tokens see at most short_keys keys get graphs of their own, because
  // attention uses other kernels for short contexts. 0: none.
  // A step gets one more graph for each KV length that the backend names (CudaGraphSupport::kv_len_buckets); steps of
  // few requests only for lengths above short_keys.
  // Small `rows` steps have no such graphs if decode_rows is kYes.
  int32_t short_keys = 0;
};

// Returns the number of tokens of the largest graph.
int32_t most_rows_of(const CudaGraphConfig& config);

// Runs a batch in the smallest graph that holds it. The tokens past its end are padding: they are not stored and keep
// no state (kDoNotStore, kNoState). Not thread-safe.
class CudaGraphRunner {
 public:
  // Owns none of its arguments; all outlive the runner, and so does the memory of their pools. The constructor captures
  // nothing.
  CudaGraphRunner(const Model& model, AttentionBackend& backend, DeviceRuntime& runtime, const CudaGraphConfig& config);

  // Runs every size once as a warm-up and then captures it, the largest first, so that smaller ones reuse its memory.
  // Throws what a step throws, kUnsupported if the backend supports no graphs, kCuda for work that cannot be captured.
  // After an error the runner is unusable, also for sizes captured before: ModelRunner drops it.
  void capture();

  // Returns true if a graph holds this batch. Decode: one token per request, each stored and with logits. Otherwise:
  // several tokens per request within the limits of the configuration, or segments.
  bool holds(const ForwardBatch& batch) const { return holds_decode(batch) || rows_for(batch) != nullptr; }
  // Pads, uploads and replays a batch that holds() accepts; its views are on the host. Returns float32 [logits_rows,
  // vocab] on the device, valid until the next run of any graph of the device.
  // `change_ids`, unless empty, is called with the uploaded input ids, int32 [tokens] or more, before the replay.
  using ChangeIds = std::function<void(const TensorView& ids)>;
  TensorView run(const ForwardBatch& batch, const ChangeIds& change_ids = {});

  // One line for reports:
  // "graphs for 1, 2, 64 requests and for steps of 8, 16 rows; with up to 2048 keys for 1, 2 requests; with up to 640
  // keys for 64 requests",
  // "graphs for steps of 32 rows and for whole canvases of up to 1024 rows, more run without",
  // "graphs for 1 canvases of 256 rows behind cached text, which runs without, as does a finished canvas that becomes
  // text"
  std::string describe() const;

 private:
  struct Captured {
    std::unique_ptr<DeviceGraph> graph;
    TensorView logits;  // in memory shared by all graphs of the device
  };
  enum class Contexts : uint8_t { kAny, kShort };
  // Graphs of one step size: `any` for every KV length, `buckets` by KV-length bucket, where attention uses another
  // kernel.
  struct Graphs {
    Captured any;
    std::map<int32_t, Captured> buckets;
    const Captured& of(int32_t most_keys) const {
      const auto found = buckets.lower_bound(most_keys);
      return found != buckets.end() && found->second.graph ? found->second : any;
    }
  };
  // Indexed by tokens, then by rows of logits.
  using BySize = std::map<int32_t, std::map<int32_t, Graphs>>;
  struct Rows {
    const RowGraphs& config;
    const BySize& recorded;
  };
  // Returns the KV lengths for which attention of the step would run other kernels, of all kinds of layers.
  std::set<int32_t> kv_len_buckets(const ForwardBatch& on_device) const;
  // Runs a step in warm-up mode.
  void warm_up(const ForwardBatch& on_device);
  // As warm_up(), and captures the step. Returns `on_device`.
  const ForwardBatch& record(Captured& to, const ForwardBatch& on_device);
  // Adds the KV-length buckets to capture. `few`: the shortest bucket, if the step has few requests.
  void add_buckets(Graphs& graphs, std::set<int32_t> buckets, std::optional<int32_t> few) const;
  void capture_decode(Contexts contexts);
  void capture_decode(int32_t size, Contexts contexts, Graphs& graphs);
  void capture_rows(Contexts contexts);
  void capture_rows(int32_t size, int32_t logits_rows, Contexts contexts, Graphs& graphs);
  void capture_canvases();
  void capture_segments();
  // A batch of `count` segments at the end of the longest context, with token ids 0.
  ForwardBatch some_segments(int32_t count);
  // Tokens that one row of the page table can address.
  int32_t longest() const { return static_cast<int32_t>(config_.table_pages * config_.page_size); }
  // An empty batch, to be padded.
  ForwardBatch nothing(ForwardMode mode) const;
  bool plain(const ForwardBatch& batch) const;
  bool are_segments(const ForwardBatch& batch) const;
  bool holds_decode(const ForwardBatch& batch) const;
  BatchPadding::Sizes sizes_of(int32_t rows, int32_t logits_rows) const;
  Rows rows() const { return {config_.rows, rows_}; }
  Rows canvases() const { return {config_.canvases, canvases_}; }
  bool fits(const Rows& rows, const ForwardBatch& batch) const;
  // The graphs that hold the batch; null: none.
  const BySize* rows_for(const ForwardBatch& batch) const;

  const Model& model_;
  AttentionBackend& backend_;
  DeviceRuntime& runtime_;
  CudaGraphConfig config_;
  DeviceBatch device_batch_;  // shared by all sizes: an array's address does not depend on how much of it is used
  std::map<int32_t, Graphs> requests_;  // by number of requests
  BySize rows_, canvases_;
  BySize segments_, conditioned_;  // without SelfConditioning and with it
  Tensor segment_ids_, segment_slots_;
  BatchPadding padding_;
  Tensor no_pages_;
};

}  // namespace headrace
