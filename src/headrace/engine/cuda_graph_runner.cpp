#include "headrace/engine/cuda_graph_runner.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace headrace {
namespace {

using NewKeys = DeviceMetadata::NewKeys;

DeviceBatchConfig device_config(const CudaGraphConfig& c) {
  return {.max_requests = c.max_requests + 1,  // one for the padding
          .max_tokens = std::max(c.max_requests, c.rows.sizes.empty() ? 0 : c.rows.sizes.back()),
          .table_rows = c.table_rows,
          .table_pages = c.table_pages,
          .page_size = c.page_size};
}

// "1, 2 requests and for steps of 8, 16 rows"
std::string listed(const std::vector<int32_t>& requests, const std::vector<int32_t>& rows) {
  const auto all = [](const std::vector<int32_t>& sizes) {
    std::string text;
    for (const int32_t size : sizes) text += (text.empty() ? "" : ", ") + std::to_string(size);
    return text;
  };
  std::string text = requests.empty() ? "" : all(requests) + " requests";
  if (!rows.empty()) text += (text.empty() ? "" : " and for ") + str("steps of ", all(rows), " rows");
  return text;
}

// With more requests a step does not wait for latency.
constexpr int32_t kFewRequests = 8;

int32_t most_keys_of(const ForwardBatch& batch) {
  int32_t keys = 0;
  for (const KeySpan& s : batch.attn.spans) keys = std::max(keys, s.ctx_len + s.q_len);
  return keys;
}

// Ends a recording whatever happens in between.
class Recording {
 public:
  explicit Recording(DeviceRuntime& runtime) : runtime_(runtime) { runtime.begin_capture(); }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  ~Recording() {
    if (ended_) return;
    try {
      runtime_.end_capture();
    } catch (const Error&) {  // the error that led here is on its way to the caller
    }
  }
  std::unique_ptr<DeviceGraph> end() {
    ended_ = true;
    return runtime_.end_capture();
  }

 private:
  DeviceRuntime& runtime_;
  bool ended_ = false;
};

}  // namespace

CudaGraphRunner::CudaGraphRunner(const Model& model, AttentionBackend& backend, DeviceRuntime& runtime,
                                 const CudaGraphConfig& config)
    : model_(model),
      backend_(backend),
      runtime_(runtime),
      config_(config),
      device_batch_(device_config(config), runtime),
      padding_(config.states),
      no_pages_(Tensor::zeros(DType::kI32, {config.table_rows, config.table_pages})) {}

void CudaGraphRunner::record(Graphs& graphs, Contexts contexts, const ForwardBatch& on_device, const End& end,
                             std::optional<int32_t> few) {
  CudaGraphSupport* support = backend_.cuda_graph_support();
  HR_REQUIRE(support != nullptr, ErrorCode::kUnsupported, "cuda graphs: attention backend '", backend_.name(),
             "' cannot be recorded");
  backend_.init_forward_metadata(on_device);
  support->init_forward_metadata_capture_cuda_graph(on_device, static_cast<int32_t>(on_device.batch_size()));
  end(model_.forward(on_device));  // warm-up: libraries start, kernels load, memory is found
  runtime_.synchronize();
  const int32_t shorter = few.value_or(device_batch_.shorter_keys());
  device_batch_.forget_plans();  // those of the warm-up: the graph is to make its own whenever it runs
  Recording recording(runtime_);
  const Tensor logits = model_.forward(on_device);
  end(logits);
  if (contexts == Contexts::kAny) {
    graphs.any = {.graph = recording.end(), .logits = logits};
    graphs.short_keys = shorter < longest() ? shorter : 0;  // else all contexts are short
  } else {
    graphs.brief = {.graph = recording.end(), .logits = logits};
  }
}

ForwardBatch CudaGraphRunner::nothing(ForwardMode mode) const {
  ForwardBatch batch{.mode = mode};
  batch.attn.page_table = no_pages_;
  batch.attn_backend = &backend_;
  return batch;
}

void CudaGraphRunner::capture() {
  if (CudaGraphSupport* support = backend_.cuda_graph_support(); support != nullptr) {
    const int32_t most = config_.rows.sizes.empty() ? 0 : config_.rows.sizes.back();
    support->init_cuda_graph_state(config_.max_requests + 1, std::max(config_.max_requests, most));
  }
  const bool decode = config_.decode_rows == CudaGraphConfig::DecodeRows::kYes;
  for (const Contexts contexts : {Contexts::kAny, Contexts::kShort}) {
    capture_rows(contexts);  // the larger ones
    if (decode) capture_decode(contexts);
  }
}

void CudaGraphRunner::capture_decode(Contexts contexts) {
  const std::vector<int32_t> sizes = capture_sizes(config_.max_requests);
  device_batch_.set_most_rows(0);
  for (auto size = sizes.rbegin(); size != sizes.rend(); ++size) {
    Graphs& graphs = requests_[*size];
    // Launches are sized for the longest context; what a request has of it is read on the device.
    const int32_t keys = contexts == Contexts::kAny ? longest() : graphs.short_keys;
    if (keys == 0) continue;
    ForwardBatch rows = padding_.fill(nothing(ForwardMode::kDecode), *size);
    for (KeySpan& span : rows.attn.spans) span.ctx_len = span.phys0 = keys - 1;
    const bool few = *size <= kFewRequests;
    record(
        graphs, contexts, device_batch_.upload(rows), [](const TensorView&) {},
        few ? std::optional(config_.short_keys) : std::nullopt);
  }
}

BatchPadding::Sizes CudaGraphRunner::sizes_of(int32_t rows, int32_t logits_rows) const {
  return {.spans = config_.max_requests + 1, .rows = rows, .logits_rows = logits_rows};
}

std::vector<int32_t> CudaGraphRunner::logits_sizes(int32_t rows) const {
  // The head of many rows is worth a graph with fewer. Of blocks that take three passes or more, 7 of 12 rows or fewer
  // are undecided on average.
  constexpr int32_t kMany = 384, kMultiple = 64;
  const int32_t most = std::min(rows, config_.rows.most_logits),
                fewer = (most * 5 / 8 + kMultiple - 1) / kMultiple * kMultiple;
  if (most <= kMany) return {most};
  return {most, fewer};
}

void CudaGraphRunner::capture_rows(Contexts contexts) {
  const RowGraphs& config = config_.rows;
  // Prompts among decode rows have more work than latency.
  const int32_t few_keys = config_.decode_rows == CudaGraphConfig::DecodeRows::kYes ? 0 : config_.short_keys;
  device_batch_.set_most_rows(config.most_rows);
  for (auto size = config.sizes.rbegin(); size != config.sizes.rend(); ++size) {
    const bool few = *size <= kFewRequests * config.most_rows;
    for (const int32_t logits : logits_sizes(*size)) {
      Graphs& graphs = rows_[*size][logits];
      if (contexts == Contexts::kShort && graphs.short_keys == 0) continue;
      device_batch_.set_most_keys(contexts == Contexts::kAny ? 0 : graphs.short_keys);
      ForwardBatch rows = padding_.fill(nothing(ForwardMode::kMixed), sizes_of(*size, logits));
      if (config.new_keys == NewKeys::kSomeNotStored) rows.attn.padding_rows = 0;  // rows that are not stored count
      record(graphs, contexts, device_batch_.upload(rows), end_rows_, few ? std::optional(few_keys) : std::nullopt);
    }
  }
}

bool CudaGraphRunner::plain(const ForwardBatch& batch) const {
  const AttnMetadata& attn = batch.attn;
  const bool recurrent = config_.states == BatchPadding::States::kRecurrent;
  return recurrent != attn.state_slots.empty() && attn.snapshots.empty() && !attn.token_merge &&
         !attn.self_conditioning &&
         std::ranges::all_of(attn.spans, [](const KeySpan& s) { return s.encoder_len == 0; });
}

bool CudaGraphRunner::holds_decode(const ForwardBatch& batch) const {
  const int64_t count = batch.batch_size();
  if (batch.mode != ForwardMode::kDecode || requests_.empty() || count < 1 || count > requests_.rbegin()->first)
    return false;
  return plain(batch) && batch.num_tokens() == count && static_cast<int64_t>(batch.logits_rows.size()) == count;
}

bool CudaGraphRunner::holds_rows(const ForwardBatch& batch) const {
  const RowGraphs& config = config_.rows;
  if (rows_.empty() || batch.batch_size() < 1 || batch.batch_size() > config_.max_requests) return false;
  if (batch.num_tokens() > rows_.rbegin()->first || static_cast<int64_t>(batch.logits_rows.size()) > config.most_logits)
    return false;
  return plain(batch) && new_keys_of(batch.attn) == config.new_keys &&
         std::ranges::all_of(batch.attn.spans, [&](const KeySpan& s) { return s.q_len <= config.most_rows; });
}

TensorView CudaGraphRunner::run(const ForwardBatch& batch) {
  const auto logits_rows = static_cast<int32_t>(batch.logits_rows.size());
  const int32_t most_keys = most_keys_of(batch);
  const ForwardBatch* padded = nullptr;
  const Captured* captured = nullptr;
  if (holds_decode(batch)) {
    const auto found = requests_.lower_bound(static_cast<int32_t>(batch.batch_size()));
    captured = &found->second.of(most_keys);
    padded = &padding_.fill(batch, found->first);
  } else {
    const auto rows = static_cast<int32_t>(batch.num_tokens());
    captured = &row_graphs(rows, logits_rows).of(most_keys);
    padded =
        &padding_.fill(batch, sizes_of(rows_.lower_bound(rows)->first, static_cast<int32_t>(captured->logits.dim(0))));
  }
  const ForwardBatch& on_device = device_batch_.upload(*padded);
  backend_.cuda_graph_support()->init_forward_metadata_replay_cuda_graph(on_device,
                                                                         static_cast<int32_t>(on_device.batch_size()));
  captured->graph->launch();
  return captured->logits.slice(0, logits_rows);
}

void CudaGraphRunner::run_rows(int32_t size, int32_t logits_rows, int32_t most_keys) {
  const auto found = rows_.find(size);
  HR_REQUIRE(found != rows_.end() && logits_rows <= found->second.rbegin()->first, ErrorCode::kInternal,
             "cuda graphs: no step of ", size, " rows with ", logits_rows, " of logits was recorded: ", describe());
  row_graphs(size, logits_rows).of(most_keys).graph->launch();
}

std::string CudaGraphRunner::describe() const {
  struct Sizes {
    std::vector<int32_t> requests, rows;
  };
  Sizes any;
  std::map<int32_t, Sizes, std::greater<>> brief;  // by keys
  for (const auto& [size, graphs] : requests_) {
    any.requests.push_back(size);
    if (graphs.short_keys > 0) brief[graphs.short_keys].requests.push_back(size);
  }
  for (const auto& [size, by_logits] : rows_) {
    any.rows.push_back(size);
    if (const int32_t keys = by_logits.begin()->second.short_keys; keys > 0) brief[keys].rows.push_back(size);
  }
  std::string text = "graphs for " + listed(any.requests, any.rows);
  for (const auto& [keys, sizes] : brief)
    text += str("; with up to ", keys, " keys for ", listed(sizes.requests, sizes.rows));
  return text;
}

}  // namespace headrace
