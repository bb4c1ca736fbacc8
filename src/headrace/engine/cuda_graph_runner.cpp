#include "headrace/engine/cuda_graph_runner.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "headrace/core/device_runtime.h"

namespace headrace {
namespace {

using NewKeys = DeviceMetadata::NewKeys;

DeviceBatchConfig device_config(const CudaGraphConfig& c) {
  return {.max_requests = c.max_requests + 1,  // one for the padding
          .max_tokens = most_rows_of(c),
          .table_rows = c.table_rows,
          .table_pages = c.table_pages,
          .page_size = c.page_size};
}

// The fill does not matter for a backend without graphs: capture() refuses it.
int32_t seq_len_fill_of(AttentionBackend& backend) {
  const CudaGraphSupport* support = backend.cuda_graph_support();
  return support != nullptr ? support->get_cuda_graph_seq_len_fill_value() : CudaGraphSupport::kSeqLenFill;
}

// "1, 2, 4"
std::string listed(const std::vector<int32_t>& sizes) {
  std::string text;
  for (const int32_t size : sizes) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return text;
}

// "1, 2 requests and for steps of 8, 16 rows"
std::string listed(const std::vector<int32_t>& requests, const std::vector<int32_t>& rows) {
  std::string text = requests.empty() ? "" : listed(requests) + " requests";
  if (!rows.empty()) text += (text.empty() ? "" : " and for ") + str("steps of ", listed(rows), " rows");
  return text;
}

// Sizes of logits rows to capture for a step of `rows` tokens, ascending; the last one holds every step.
std::vector<int32_t> logits_sizes(const RowGraphs& config, int32_t rows) {
  // The LM head over many rows is worth a second graph with fewer. In blocks that take three passes or more, 7 of 12
  // rows or fewer are undecided on average.
  constexpr int32_t kMany = 384, kMultiple = 64;
  const int32_t most = std::min(rows, config.most_logits);
  if (config.few_logits && *config.few_logits < most) return {*config.few_logits, most};
  if (config.few_logits || most <= kMany) return {most};
  return {(most * 5 / 8 + kMultiple - 1) / kMultiple * kMultiple, most};
}

// Steps with more requests are not bound by latency.
constexpr int32_t kFewRequests = 8;

int32_t most_keys_of_batch(const ForwardBatch& batch) {
  int32_t keys = 0;
  for (const KeySpan& s : batch.attn.spans) keys = std::max(keys, s.ctx_len + s.q_len);
  return keys;
}

// Ends a capture, also after an exception.
class Recording {
 public:
  explicit Recording(DeviceRuntime& runtime) : runtime_(runtime) { runtime.begin_capture(); }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  ~Recording() {
    if (ended_) return;
    try {
      runtime_.end_capture();
    } catch (const Error&) {  // the first error propagates instead
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

int32_t most_rows_of(const CudaGraphConfig& c) {
  int32_t most = c.max_requests;
  for (const RowGraphs* rows : {&c.rows, &c.canvases})
    most = std::max(most, rows->sizes.empty() ? 0 : rows->sizes.back());
  if (!c.segments.requests.empty()) most = std::max(most, c.segments.requests.back() * c.segments.keys.q_len);
  return most;
}

CudaGraphRunner::CudaGraphRunner(const Model& model, AttentionBackend& backend, DeviceRuntime& runtime,
                                 const CudaGraphConfig& config)
    : model_(model),
      backend_(backend),
      runtime_(runtime),
      config_(config),
      device_batch_(device_config(config), runtime),
      padding_(config.states, seq_len_fill_of(backend)),
      no_pages_(Tensor::zeros(DType::kI32, {config.table_rows, config.table_pages})) {}

std::set<int32_t> CudaGraphRunner::kv_len_buckets(const ForwardBatch& on_device) const {
  std::set<int32_t> buckets;
  for (const RadixAttentionConfig& layer : model_.info().attention_kinds) {
    const auto of_layer = backend_.cuda_graph_support()->kv_len_buckets(on_device, layer, model_.info().dtype);
    buckets.insert(of_layer.begin(), of_layer.end());
  }
  return buckets;
}

void CudaGraphRunner::warm_up(const ForwardBatch& on_device) {
  CudaGraphSupport* support = backend_.cuda_graph_support();
  HR_REQUIRE(support != nullptr, ErrorCode::kUnsupported, "cuda graphs: attention backend '", backend_.name(),
             "' cannot be recorded");
  const WarmupScope warming_up(backend_.metadata_source());
  support->init_forward_metadata_capture_cuda_graph(on_device, static_cast<int32_t>(on_device.batch_size()));
  model_.forward(on_device);  // starts libraries, loads kernels, allocates memory
  runtime_.synchronize();
}

const ForwardBatch& CudaGraphRunner::record(Captured& to, const ForwardBatch& on_device) {
  warm_up(on_device);
  device_batch_.forget_plans();  // the graph must make its own plans on every replay
  Recording recording(runtime_);
  const Tensor logits = model_.forward(on_device);
  to = {.graph = recording.end(), .logits = logits};
  return on_device;
}

void CudaGraphRunner::add_buckets(Graphs& graphs, std::set<int32_t> buckets, std::optional<int32_t> few) const {
  if (few) buckets.erase(buckets.begin(), buckets.upper_bound(*few)), buckets.insert(*few);
  for (const int32_t keys : buckets) {
    if (keys > 0 && keys < longest()) graphs.buckets[keys];  // otherwise every context is short
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
    support->init_cuda_graph_state(config_.max_requests + 1, most_rows_of(config_));
  }
  const bool decode = config_.decode_rows == CudaGraphConfig::DecodeRows::kYes;
  capture_segments();  // first: they are larger
  capture_canvases();
  for (const Contexts contexts : {Contexts::kAny, Contexts::kShort}) {
    capture_rows(contexts);
    if (decode) capture_decode(contexts);
  }
}

void CudaGraphRunner::capture_decode(Contexts contexts) {
  const std::vector<int32_t> sizes = capture_sizes(config_.max_requests);
  device_batch_.set_most_rows(0);
  for (auto size = sizes.rbegin(); size != sizes.rend(); ++size) capture_decode(*size, contexts, requests_[*size]);
}

void CudaGraphRunner::capture_decode(int32_t size, Contexts contexts, Graphs& graphs) {
  // Launches are sized for the longest context; kernels read each request's length on the device.
  const auto record_for = [&](int32_t keys, Captured& to) -> const ForwardBatch& {
    ForwardBatch rows = padding_.fill(nothing(ForwardMode::kDecode), size);
    for (KeySpan& span : rows.attn.spans) span.ctx_len = span.phys0 = keys - 1;
    return record(to, device_batch_.upload(rows));
  };
  if (contexts == Contexts::kAny) {
    const bool few = size <= kFewRequests;
    const std::set<int32_t> buckets = kv_len_buckets(record_for(longest(), graphs.any));
    add_buckets(graphs, buckets, few ? std::optional(config_.short_keys) : std::nullopt);
  } else {
    for (auto& [keys, captured] : graphs.buckets) record_for(keys, captured);
  }
}

BatchPadding::Sizes CudaGraphRunner::sizes_of(int32_t rows, int32_t logits_rows) const {
  return {.spans = config_.max_requests + 1, .rows = rows, .logits_rows = logits_rows};
}

void CudaGraphRunner::capture_canvases() {
  const RowGraphs& config = config_.canvases;
  for (auto size = config.sizes.rbegin(); size != config.sizes.rend(); ++size) {
    device_batch_.set_most_rows(std::min(*size, config.most_rows));
    device_batch_.set_most_keys(*size);
    const std::vector<int32_t> logits = logits_sizes(config, *size);
    for (auto count = logits.rbegin(); count != logits.rend(); ++count) {
      ForwardBatch rows = padding_.fill(nothing(ForwardMode::kMixed), sizes_of(*size, *count));
      // tokens that are not stored are real ones, too
      if (config.new_keys == NewKeys::kSomeNotStored) rows.attn.padding_rows = 0;
      record(canvases_[*size][*count].any, device_batch_.upload(rows));  // no KV-length buckets
    }
  }
}

ForwardBatch CudaGraphRunner::some_segments(int32_t count) {
  const int32_t each = config_.segments.keys.q_len, rows = count * each;
  ForwardBatch batch = nothing(ForwardMode::kExtend);
  for (int32_t r = 0; r < count; ++r) {
    KeySpan span = config_.segments.keys;
    span.q_off = r * each;
    span.ctx_len = span.phys0 = std::max(0, longest() - each);
    batch.attn.spans.push_back(span);
  }
  batch.input_ids = batch.positions = segment_ids_.view().slice(0, rows);
  batch.attn.write_slots = segment_slots_.view().slice(0, rows);
  return batch;
}

void CudaGraphRunner::capture_segments() {
  const SegmentGraphs& config = config_.segments;
  if (config.requests.empty()) return;
  const int64_t most = int64_t{config.requests.back()} * config.keys.q_len;
  segment_ids_ = Tensor::zeros(DType::kI32, {most});
  segment_slots_ = Tensor(DType::kI64, {most});
  std::fill_n(segment_slots_.data_as<int64_t>(), most, kDoNotStore);
  const Tensor marks(DType::kU8, {most});
  std::fill_n(marks.data_as<uint8_t>(), most, uint8_t{1});
  if (config.conditioning > 0) device_batch_.reserve_conditioning(most, config.conditioning);
  for (const bool conditioned : {true, false}) {
    if (conditioned && config.conditioning == 0) continue;
    for (auto count = config.requests.rbegin(); count != config.requests.rend(); ++count) {
      const int32_t rows = *count * config.keys.q_len;
      device_batch_.set_most_rows(config.keys.q_len);
      device_batch_.set_most_keys(0);
      ForwardBatch batch = padding_.fill(some_segments(*count), sizes_of(rows, rows));
      if (conditioned) {
        batch.soft.self_conditioning = {.mask = marks.view().slice(0, rows),
                                        .logits = device_batch_.conditioning(rows)};
      }
      record((conditioned ? conditioned_ : segments_)[rows][rows].any, device_batch_.upload(batch));
    }
  }
}

void CudaGraphRunner::capture_rows(Contexts contexts) {
  const RowGraphs& config = config_.rows;
  for (auto size = config.sizes.rbegin(); size != config.sizes.rend(); ++size) {
    device_batch_.set_most_rows(std::min(*size, config.most_rows));
    const std::vector<int32_t> all_logits = logits_sizes(config, *size);
    for (auto logits = all_logits.rbegin(); logits != all_logits.rend(); ++logits) {
      capture_rows(*size, *logits, contexts, rows_[*size][*logits]);
    }
  }
}

void CudaGraphRunner::capture_rows(int32_t size, int32_t logits_rows, Contexts contexts, Graphs& graphs) {
  const RowGraphs& config = config_.rows;
  const auto record_for = [&](int32_t keys, Captured& to) -> const ForwardBatch& {
    device_batch_.set_most_keys(keys);
    ForwardBatch rows = padding_.fill(nothing(ForwardMode::kMixed), sizes_of(size, logits_rows));
    if (config.new_keys == NewKeys::kSomeNotStored)
      rows.attn.padding_rows = 0;  // tokens that are not stored are real ones, too
    return record(to, device_batch_.upload(rows));
  };
  if (contexts == Contexts::kShort) {
    for (auto& [keys, captured] : graphs.buckets) record_for(keys, captured);
    return;
  }
  const ForwardBatch& on_device = record_for(0, graphs.any);
  const bool few = size <= kFewRequests * config.most_rows;
  // Prompts beside decode tokens are not bound by latency.
  if (few && config_.decode_rows == CudaGraphConfig::DecodeRows::kYes) return;
  add_buckets(graphs, kv_len_buckets(on_device), few ? std::optional(config_.short_keys) : std::nullopt);
}

bool CudaGraphRunner::plain(const ForwardBatch& batch) const {
  const AttnMetadata& attn = batch.attn;
  const bool recurrent = config_.states == BatchPadding::States::kRecurrent;
  return recurrent != attn.state_slots.empty() && attn.snapshots.empty() && !batch.soft.token_merge &&
         std::ranges::all_of(attn.spans, [](const KeySpan& s) { return s.encoder_len == 0; });
}

bool CudaGraphRunner::holds_decode(const ForwardBatch& batch) const {
  const int64_t count = batch.batch_size();
  if (batch.mode != ForwardMode::kDecode || requests_.empty() || count < 1 || count > requests_.rbegin()->first)
    return false;
  return plain(batch) && !batch.soft.self_conditioning && batch.num_tokens() == count &&
         static_cast<int64_t>(batch.logits_rows.size()) == count && new_keys_of(batch.attn) == NewKeys::kAllStored;
}

bool CudaGraphRunner::fits(const Rows& rows, const ForwardBatch& batch) const {
  if (rows.recorded.empty() || batch.batch_size() < 1 || batch.batch_size() > config_.max_requests) return false;
  if (batch.num_tokens() > rows.recorded.rbegin()->first) return false;
  if (static_cast<int64_t>(batch.logits_rows.size()) > rows.config.most_logits) return false;
  const auto is_short = [most = rows.config.most_rows](const KeySpan& s) { return s.q_len <= most; };
  return plain(batch) && !batch.soft.self_conditioning && std::ranges::all_of(batch.attn.spans, is_short);
}

bool CudaGraphRunner::are_segments(const ForwardBatch& batch) const {
  const SegmentGraphs& config = config_.segments;
  const int64_t count = batch.batch_size(), rows = batch.num_tokens();
  if (segments_.empty() || count < 1 || count > config.requests.back() || !plain(batch)) return false;
  if (batch.soft.self_conditioning && (conditioned_.empty() || batch.soft.num_conditioned() != rows)) return false;
  return static_cast<int64_t>(batch.logits_rows.size()) == rows && new_keys_of(batch.attn) == NewKeys::kSomeNotStored &&
         std::ranges::all_of(batch.attn.spans, [&keys = config.keys](const KeySpan& s) {
           return s.q_len == keys.q_len && s.kind == keys.kind && s.window_from == keys.window_from &&
                  s.hole_begin == s.hole_end;
         });
}

const CudaGraphRunner::BySize* CudaGraphRunner::rows_for(const ForwardBatch& batch) const {
  const NewKeys keys = new_keys_of(batch.attn);
  // Graphs that read new keys from the step also run batches that store all of them.
  const auto takes = [keys](const RowGraphs& config) {
    return keys == config.new_keys || config.new_keys == NewKeys::kSomeNotStored;
  };
  if (are_segments(batch)) return batch.soft.self_conditioning ? &conditioned_ : &segments_;
  if (takes(config_.rows) && fits(rows(), batch)) return &rows_;
  return takes(config_.canvases) && fits(canvases(), batch) ? &canvases_ : nullptr;
}

TensorView CudaGraphRunner::run(const ForwardBatch& batch, const ChangeIds& change_ids) {
  const auto logits_rows = static_cast<int32_t>(batch.logits_rows.size());
  const int32_t most_keys = most_keys_of_batch(batch);
  const ForwardBatch* padded = nullptr;
  const Captured* captured = nullptr;
  if (holds_decode(batch)) {
    const auto found = requests_.lower_bound(static_cast<int32_t>(batch.batch_size()));
    captured = &found->second.of(most_keys);
    padded = &padding_.fill(batch, found->first);
  } else {
    const auto found = rows_for(batch)->lower_bound(static_cast<int32_t>(batch.num_tokens()));
    captured = &found->second.lower_bound(logits_rows)->second.of(most_keys);
    padded = &padding_.fill(batch, sizes_of(found->first, static_cast<int32_t>(captured->logits.dim(0))));
  }
  const ForwardBatch& on_device = device_batch_.upload(*padded);
  if (change_ids) change_ids(on_device.input_ids);
  backend_.cuda_graph_support()->init_forward_metadata_replay_cuda_graph(on_device,
                                                                         static_cast<int32_t>(on_device.batch_size()));
  captured->graph->launch();
  return captured->logits.slice(0, logits_rows);
}

std::string CudaGraphRunner::describe() const {
  struct Sizes {
    std::vector<int32_t> requests, rows;
  };
  Sizes any;
  std::map<int32_t, Sizes, std::greater<>> buckets;  // by keys
  for (const auto& [size, graphs] : requests_) {
    any.requests.push_back(size);
    for (const auto& [keys, captured] : graphs.buckets) buckets[keys].requests.push_back(size);
  }
  for (const auto& [size, by_logits] : rows_) {
    any.rows.push_back(size);
    for (const auto& [keys, captured] : by_logits.begin()->second.buckets) buckets[keys].rows.push_back(size);
  }
  std::string text = listed(any.requests, any.rows);
  if (!canvases_.empty()) {
    text += (text.empty() ? "" : " and for ") +
            str("whole canvases of up to ", canvases_.rbegin()->first, " rows, more run without");
  }
  if (!segments_.empty()) {
    text += (text.empty() ? "" : " and for ") + listed(config_.segments.requests) +
            str(" canvases of ", config_.segments.keys.q_len,
                " rows behind cached text, which runs without, as does a finished canvas that becomes text");
    if (config_.segments.conditioning > 0 && config_.segments.requests.back() > 1) {
      text += ", and first steps of canvases beside later ones";
    }
  }
  text = "graphs for " + text;
  if (config_.rows.mixtures == RowGraphs::Mixtures::kSome) text += ", those with mixtures of tokens run without";
  for (const auto& [keys, sizes] : buckets)
    text += str("; with up to ", keys, " keys for ", listed(sizes.requests, sizes.rows));
  return text;
}

}  // namespace headrace
