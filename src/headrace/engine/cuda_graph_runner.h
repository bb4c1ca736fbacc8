// Steps as recorded graphs: one launch for a whole step.
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

// Steps whose requests have several rows: diffusion blocks, whole canvases, or short prompts among decode rows.
struct RowGraphs {
  std::vector<int32_t> sizes;              // rows of a step, ascending; empty: such steps run without
  int32_t most_rows = 1;                   // of a request
  int32_t most_logits = 1;                 // rows of logits of a step
  std::optional<int32_t> few_logits = {};  // of most steps, if fewer: each size is recorded for these too
  // What is recorded; a batch of the other kind runs without.
  DeviceMetadata::NewKeys new_keys = DeviceMetadata::NewKeys::kSomeNotStored;
  // kSome: the strategy has steps with rows that are mixtures of tokens besides, which run without.
  enum class Mixtures : uint8_t { kNone, kSome } mixtures = Mixtures::kNone;
};

// Steps whose requests run rows like `keys`, as many each, behind what is cached; all have logits, and none is stored.
struct SegmentGraphs {
  std::vector<int32_t> requests;  // of a step, ascending; empty: such steps run without
  KeySpan keys;                   // but for where it lies
  int64_t conditioning = 0;       // columns of what rows take besides (SelfConditioning), all or none; 0: none do
};

struct CudaGraphConfig {
  int32_t max_requests = 1;
  enum class DecodeRows : uint8_t { kNo, kYes } decode_rows = DecodeRows::kYes;  // steps of one row for each request
  RowGraphs rows;
  // Steps that run requests from their first token to their last, some of them perhaps beside blocks: what `rows` do
  // not hold. Rows see about as many keys as the step has rows. Recorded for kSomeNotStored they serve both kinds.
  RowGraphs canvases = {};
  SegmentGraphs segments = {};
  int64_t table_rows = 0, table_pages = 0;  // of the page table that batches refer to
  int64_t page_size = 1;                    // tokens
  BatchPadding::States states = BatchPadding::States::kNone;
  // Steps of few requests whose rows see at most so many keys have graphs of their own, where attention is chosen for
  // short contexts. 0: none have. Steps have one more for each number of keys that their kernels name
  // (AttentionPlanCache::note_shorter), those of few requests where it is above this; small steps of rows beside decode
  // rows have none.
  int32_t short_keys = 0;
};

// Rows of the largest graph.
int32_t most_rows_of(const CudaGraphConfig& config);

// A batch runs in the smallest graph that holds it; rows past its end are padding, which is neither stored nor kept
// (kDoNotStore, kNoState). Not thread-safe.
class CudaGraphRunner {
 public:
  // None is owned; all outlive the runner, and so does the memory of their pools. Records nothing yet.
  CudaGraphRunner(const Model& model, AttentionBackend& backend, DeviceRuntime& runtime, const CudaGraphConfig& config);

  // Recorded behind each step of rows or canvases, over its logits. Before capture().
  void end_rows_with(std::function<void(const TensorView& logits)> end) { end_rows_ = std::move(end); }
  // Makes pages known that no batch has referred to yet.
  void upload_pages(const TensorView& table, int32_t row, int64_t pages) {
    device_batch_.upload_pages(table, row, pages);
  }
  // What steps of RowGraphs read their batches from.
  DeviceBatch::Arrays arrays() const { return device_batch_.arrays(); }

  // Runs every size once as a warm-up and then records it, the largest first, so that the smaller ones find their
  // memory. Throws what a step throws, kUnsupported where graphs mean nothing, kCuda for what cannot be recorded; of
  // sizes recorded before none is run then: ModelRunner drops the runner.
  void capture();

  // Whether a graph holds this batch: decode rows, one per request, each of which is stored and wants its logits; or
  // some rows of each request, within the limits of the configuration; or segments.
  bool holds(const ForwardBatch& batch) const { return holds_decode(batch) || holds_rows(batch); }
  // Runs it; `batch` has its views on the host. float32 [logits_rows, vocab] on the device, valid until the next run of
  // any graph of the device. `ids`, int32 [rows] there, stand in for the batch's; null: its own.
  TensorView run(const ForwardBatch& batch, const TensorView& ids = {});

  // Whether run(batch) is a step of CudaGraphConfig::rows, of its canvases or segments.
  bool holds_rows(const ForwardBatch& batch) const { return rows_for(batch) != nullptr; }
  // Runs the step of that many rows, one of the sizes of `kind`, of which so many want logits, over what lies in
  // arrays(). `most_keys`: that its rows see, about; it chooses the graph, and any of them is right. Error kInternal
  // for a number of rows that is not recorded: a larger graph would read rows of steps before.
  enum class Kind : uint8_t { kRows, kCanvases };
  void run_rows(Kind kind, int32_t size, int32_t logits_rows, int32_t most_keys);

  // "graphs for 1, 2, 64 requests and for steps of 8, 16 rows; with up to 2048 keys for 1, 2 requests; with up to 640
  // keys for 64 requests", "graphs for steps of 32 rows and for whole canvases of up to 1024 rows, more run without",
  // "graphs for 1 canvases of 256 rows behind cached text, which runs without, as does a finished canvas that becomes
  // text"
  std::string describe() const;

 private:
  struct Captured {
    std::unique_ptr<DeviceGraph> graph;
    TensorView logits;  // in memory that all graphs of the device share
  };
  enum class Contexts : uint8_t { kAny, kShort };
  // Of steps of one size: for contexts of any length and, where attention is another one then, of up to so many keys.
  struct Graphs {
    Captured any;
    std::map<int32_t, Captured> brief;
    const Captured& of(int32_t most_keys) const {
      const auto found = brief.lower_bound(most_keys);
      return found != brief.end() && found->second.graph ? found->second : any;
    }
  };
  // By rows, then by rows of logits.
  using BySize = std::map<int32_t, std::map<int32_t, Graphs>>;
  struct Rows {
    const RowGraphs& config;
    const BySize& recorded;
  };
  using End = std::function<void(const TensorView& logits)>;
  // Runs a step under the flag of a warm-up. Returns for how many keys its kernels would be others.
  std::set<int32_t> warm_up(const ForwardBatch& on_device, const End& end);
  // The same, and records the step.
  std::set<int32_t> record(Captured& to, const ForwardBatch& on_device, const End& end);
  // For which short contexts a step is recorded besides, of those that its kernels named. `few`: keys of the shortest,
  // where requests are few.
  void prepare_short(Graphs& graphs, std::set<int32_t> named, std::optional<int32_t> few) const;
  void capture_decode(Contexts contexts);
  void capture_decode(int32_t size, Contexts contexts, Graphs& graphs);
  void capture_rows(Contexts contexts);
  void capture_rows(int32_t size, int32_t logits_rows, Contexts contexts, Graphs& graphs);
  void capture_canvases();
  void capture_segments();
  // That many, as far behind as the page table goes, of tokens 0.
  ForwardBatch some_segments(int32_t count);
  // Tokens that the page table has room for in one row.
  int32_t longest() const { return static_cast<int32_t>(config_.table_pages * config_.page_size); }
  // Padding alone, before it is filled up.
  ForwardBatch nothing(ForwardMode mode) const;
  bool plain(const ForwardBatch& batch) const;
  bool are_segments(const ForwardBatch& batch) const;
  bool holds_decode(const ForwardBatch& batch) const;
  BatchPadding::Sizes sizes_of(int32_t rows, int32_t logits_rows) const;
  Rows rows() const { return {config_.rows, rows_}; }
  Rows canvases() const { return {config_.canvases, canvases_}; }
  bool fits(const Rows& rows, const ForwardBatch& batch) const;
  // Whose graphs hold the batch; null: nobody's.
  const BySize* rows_for(const ForwardBatch& batch) const;

  const Model& model_;
  AttentionBackend& backend_;
  DeviceRuntime& runtime_;
  CudaGraphConfig config_;
  DeviceBatch device_batch_;            // of all sizes: an array's address does not depend on how much of it is used
  std::map<int32_t, Graphs> requests_;  // by how many
  BySize rows_, canvases_;
  BySize segments_, conditioned_;  // without SelfConditioning and with it
  Tensor segment_ids_, segment_slots_;
  BatchPadding padding_;
  Tensor no_pages_;
  End end_rows_ = [](const TensorView&) {};
};

}  // namespace headrace
