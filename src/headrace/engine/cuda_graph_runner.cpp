#include "headrace/engine/cuda_graph_runner.h"

#include <algorithm>
#include <tuple>
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

std::string listed(const auto& graphs) {
  std::string sizes;
  for (const auto& [size, captured] : graphs) sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
  return sizes;
}

// Of short contexts: with more requests a step does not wait for latency.
constexpr int32_t kShortRequests = 8;

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

CudaGraphRunner::Captured CudaGraphRunner::record(const ForwardBatch& on_device,
                                                  const std::function<void(const TensorView& logits)>& end) {
  CudaGraphSupport* support = backend_.cuda_graph_support();
  HR_REQUIRE(support != nullptr, ErrorCode::kUnsupported, "cuda graphs: attention backend '", backend_.name(),
             "' cannot be recorded");
  backend_.init_forward_metadata(on_device);
  support->init_forward_metadata_capture_cuda_graph(on_device, static_cast<int32_t>(on_device.batch_size()));
  end(model_.forward(on_device));  // warm-up: libraries start, kernels load, memory is found
  runtime_.synchronize();
  device_batch_.forget_plans();  // those of the warm-up: the graph is to make its own whenever it runs
  Recording recording(runtime_);
  const Tensor logits = model_.forward(on_device);
  end(logits);
  return {.graph = recording.end(), .logits = logits};
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
  capture_rows(any_, 0);  // the larger ones
  if (decode) capture_decode(any_, 0);
  if (config_.short_keys >= config_.table_pages * config_.page_size) config_.short_keys = 0;  // all contexts are short
  if (config_.short_keys == 0) return;
  if (!decode) capture_rows(short_, config_.short_keys);
  if (decode) capture_decode(short_, config_.short_keys);
}

void CudaGraphRunner::capture_decode(GraphSet& set, int32_t keys) {
  const std::vector<int32_t> sizes = capture_sizes(config_.max_requests);
  device_batch_.set_most_rows(0);
  // Launches are sized for the longest context; what a request has of it is read on the device.
  const auto longest = keys > 0 ? keys - 1 : static_cast<int32_t>(config_.table_pages * config_.page_size) - 1;
  for (auto size = sizes.rbegin(); size != sizes.rend(); ++size) {
    if (keys > 0 && *size > kShortRequests) continue;
    ForwardBatch rows = padding_.fill(nothing(ForwardMode::kDecode), *size);
    for (KeySpan& span : rows.attn.spans) span.ctx_len = span.phys0 = longest;
    set.requests[*size] = record(device_batch_.upload(rows), [](const TensorView&) {});
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

const CudaGraphRunner::Captured& CudaGraphRunner::row_graph(const GraphSet& set, int32_t rows,
                                                            int32_t logits_rows) const {
  auto found = set.rows.lower_bound(rows);
  if (found == set.rows.end()) found = any_.rows.lower_bound(rows);
  return found->second.lower_bound(logits_rows)->second;
}

std::pair<int32_t, const CudaGraphRunner::Captured*> CudaGraphRunner::request_graph(const GraphSet& set,
                                                                                    int32_t requests) const {
  auto found = set.requests.lower_bound(requests);
  if (found == set.requests.end()) found = any_.requests.lower_bound(requests);
  return {found->first, &found->second};
}

void CudaGraphRunner::capture_rows(GraphSet& set, int32_t keys) {
  const RowGraphs& config = config_.rows;
  device_batch_.set_most_rows(config.most_rows);
  device_batch_.set_most_keys(keys);
  for (auto size = config.sizes.rbegin(); size != config.sizes.rend(); ++size) {
    if (keys > 0 && *size > kShortRequests * config.most_rows) continue;
    for (const int32_t logits : logits_sizes(*size)) {
      ForwardBatch rows = padding_.fill(nothing(ForwardMode::kMixed), sizes_of(*size, logits));
      if (config.new_keys == NewKeys::kSomeNotStored) rows.attn.padding_rows = 0;  // rows that are not stored count
      set.rows[*size][logits] = record(device_batch_.upload(rows), end_rows_);
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
  if (batch.mode != ForwardMode::kDecode || any_.requests.empty() || count < 1 || count > any_.requests.rbegin()->first)
    return false;
  return plain(batch) && batch.num_tokens() == count && static_cast<int64_t>(batch.logits_rows.size()) == count;
}

bool CudaGraphRunner::holds_rows(const ForwardBatch& batch) const {
  const RowGraphs& config = config_.rows;
  if (any_.rows.empty() || batch.batch_size() < 1 || batch.batch_size() > config_.max_requests) return false;
  if (batch.num_tokens() > any_.rows.rbegin()->first ||
      static_cast<int64_t>(batch.logits_rows.size()) > config.most_logits)
    return false;
  return plain(batch) && new_keys_of(batch.attn) == config.new_keys &&
         std::ranges::all_of(batch.attn.spans, [&](const KeySpan& s) { return s.q_len <= config.most_rows; });
}

TensorView CudaGraphRunner::run(const ForwardBatch& batch) {
  const GraphSet& set = set_for(most_keys_of(batch));
  const auto logits_rows = static_cast<int32_t>(batch.logits_rows.size());
  const ForwardBatch* padded = nullptr;
  const Captured* captured = nullptr;
  if (holds_decode(batch)) {
    int32_t size = 0;
    std::tie(size, captured) = request_graph(set, static_cast<int32_t>(batch.batch_size()));
    padded = &padding_.fill(batch, size);
  } else {
    const auto rows = static_cast<int32_t>(batch.num_tokens());
    captured = &row_graph(set, rows, logits_rows);
    padded = &padding_.fill(
        batch, sizes_of(any_.rows.lower_bound(rows)->first, static_cast<int32_t>(captured->logits.dim(0))));
  }
  const ForwardBatch& on_device = device_batch_.upload(*padded);
  backend_.cuda_graph_support()->init_forward_metadata_replay_cuda_graph(on_device,
                                                                         static_cast<int32_t>(on_device.batch_size()));
  captured->graph->launch();
  return captured->logits.slice(0, logits_rows);
}

void CudaGraphRunner::run_rows(int32_t size, int32_t logits_rows, int32_t most_keys) {
  const auto found = any_.rows.find(size);
  HR_REQUIRE(found != any_.rows.end() && logits_rows <= found->second.rbegin()->first, ErrorCode::kInternal,
             "cuda graphs: no step of ", size, " rows with ", logits_rows, " of logits was recorded: ", describe());
  row_graph(set_for(most_keys), size, logits_rows).graph->launch();
}

std::string CudaGraphRunner::GraphSet::describe() const {
  std::string text;
  if (!requests.empty()) text = listed(requests) + " requests";
  if (!rows.empty()) text += (text.empty() ? "" : " and for ") + str("steps of ", listed(rows), " rows");
  return text;
}

std::string CudaGraphRunner::describe() const {
  std::string text = "graphs for " + any_.describe();
  if (config_.short_keys > 0) text += str("; with up to ", config_.short_keys, " keys for ", short_.describe());
  return text;
}

}  // namespace headrace
