#include "headrace/engine/model_runner.h"

#include <algorithm>
#include <cstring>

#include "headrace/attention/gdn_attn_backend.h"
#include "headrace/core/device_runtime.h"
#include "headrace/core/host_memory.h"
#include "headrace/core/human_bytes.h"
#include "headrace/core/memory_need.h"
#include "headrace/engine/graph_sizes.h"
#include "headrace/engine/state_table.h"

namespace headrace {
namespace {

constexpr int64_t kSpansPerRequest = 8;  // upper bound; strategies may run several blocks of one request
// KV length up to which attention of a few rows is bound by latency, not bandwidth; in batch-invariant mode, of one
// fixed KV split.
constexpr int32_t kShortKeys = 2048, kStrictShortKeys = 4096;

Tensor on_host(DeviceRuntime& runtime, const TensorView& x) {
  Tensor copy(x.dtype(), x.shape());
  runtime.copy_to_host(copy.data(), x.data(), static_cast<size_t>(x.bytes()));
  return copy;
}

// The KV cache is allocated first, so a smaller one leaves memory for later allocations.
constexpr std::string_view kShorter = "a smaller max_model_len";
constexpr std::string_view kShorterOrSmallerCache =
    "a smaller max_model_len, or a smaller cache (kv_cache_memory_bytes)";
constexpr std::string_view kShorterOrFewerTokens =
    "a smaller max_model_len, or fewer tokens per step (max_num_batched_tokens)";
constexpr std::string_view kShorterOrNoGraphs = "a smaller max_model_len, or no graphs (--no-graphs)";

std::unique_ptr<KVPool> make_kv_pool(const KVPoolConfig& config, DeviceRuntime& runtime) {
  const int64_t bytes = KVPool::bytes_for(config);
  const std::string what = str("a KV cache of ", int64_t{config.num_pages} * config.page_size, " tokens");
  return with_need({.what = what, .bytes = bytes, .advice = kShorterOrSmallerCache}, [&] {
    if (runtime.device().type == DeviceType::kCPU) {
      const int64_t available = available_host_memory().value_or(bytes);
      HR_REQUIRE(bytes <= available, ErrorCode::kOutOfMemory, "cpu: ", human_bytes(available), " are available");
    }
    return std::make_unique<KVPool>(config, runtime);
  });
}

std::unique_ptr<GDNPool> make_gdn_pool(const GDNPoolConfig& config, DeviceRuntime& runtime) {
  const MemoryNeed need{.what = str("a pool of ", config.num_slots, " recurrent states"),
                        .bytes = GDNPool::bytes_for(config),
                        .advice = kShorterOrSmallerCache};
  return with_need(need, [&] { return std::make_unique<GDNPool>(config, runtime); });
}

MemoryNeed need_of_attention(int64_t max_tokens, const GDNPool* gdn) {
  MemoryNeed need{.what = str("attention in steps of ", max_tokens, " rows"), .advice = kShorterOrFewerTokens};
  // other attention backends allocate nothing
  if (gdn != nullptr) need.bytes = GDNAttnBackend::bytes_for(gdn->config(), max_tokens);
  return need;
}

MemoryNeed need_of_step(int64_t rows) {
  return {.what = str("a step of ", rows, " rows"), .advice = kShorterOrFewerTokens};
}

}  // namespace

ModelRunner::ModelRunner(const Model& model, const RunnerConfig& config)
    : model_(model),
      config_(config),
      runtime_(config.runtime != nullptr ? *config.runtime : cpu_runtime()),
      kv_(make_kv_pool(KVPoolConfig{.groups = model.info().kv_groups,
                                    .num_pages = config.num_pages,
                                    .page_size = config.page_size,
                                    .dtype = config.kv_dtype.value_or(model.info().dtype),
                                    .scales = model.info().kv_scales},
                       runtime_)) {
  if (model.info().num_gdn_layers > 0) {
    GDNPoolConfig gdn = model.info().gdn;
    gdn.num_slots = config.num_states;
    gdn_ = make_gdn_pool(gdn, runtime_);
  }
  const BackendConfig backend{.kv_pool = kv_.get(),
                              .gdn_pool = gdn_.get(),
                              .full_attn_layer_ids = model.info().full_attn_layer_ids,
                              .max_tokens = config.max_tokens,
                              .runtime = &runtime_,
                              .context = config.context,
                              .kernel_set = config.kernel_set,
                              .attn_impl = config.attn_impl,
                              .ops = config.ops};
  backend_ = with_need(need_of_attention(config.max_tokens, gdn_.get()),
                       [&] { return make_backend(config.backend, runtime_.device(), backend); });
  ops_ = &backend_ops(config.backend, runtime_.device(), backend);
  if (config.times_gaps) gaps_.emplace(runtime_);
}

void ModelRunner::prepare(const BatchLimits& limits) {
  const bool required = config_.graphs == RunnerConfig::Graphs::kRequired;
  if (on_cpu()) {
    no_graphs_ = "a CPU has none";
  } else {
    const CudaGraphConfig graphs = graph_config(limits);
    const auto without = required ? steps_without(graphs, limits.max_context_len, config_.max_tokens) : std::nullopt;
    HR_REQUIRE(!without, ErrorCode::kOutOfMemory, "graphs of all steps behind prompts are required, but ", *without);
    const DeviceBatchConfig tables{.max_requests = limits.table_rows * kSpansPerRequest,
                                   .max_tokens = config_.max_tokens,
                                   .table_rows = limits.table_rows,
                                   .table_pages = limits.table_pages,
                                   .page_size = kv_->page_size(),
                                   .max_snapshots = limits.table_rows * StateTable::kMostSnapshots};
    device_batch_ = with_need({.what = str("the memory of a step's tables, of up to ", config_.max_tokens, " rows,"),
                               .bytes = DeviceBatch::bytes_for(tables),
                               .advice = kShorterOrFewerTokens},
                              [&] { return std::make_unique<DeviceBatch>(tables, runtime_); });
    capture(graphs);
  }
  HR_REQUIRE(graphs_ || !required, ErrorCode::kOutOfMemory,
             "graphs of all steps behind prompts are required, but there are none: ", no_graphs_);
}

CudaGraphConfig ModelRunner::graph_config(const BatchLimits& limits) const {
  const bool strict = config_.context.determinism == Determinism::kStrict;
  CudaGraphConfig config{.max_requests = limits.max_requests,
                         .decode_rows = limits.decode_rows,
                         .rows = limits.rows,
                         .canvases = limits.canvases,
                         .segments = limits.segments,
                         .table_rows = limits.table_rows,
                         .table_pages = limits.table_pages,
                         .page_size = kv_->page_size(),
                         .states = gdn_ ? BatchPadding::States::kRecurrent : BatchPadding::States::kNone,
                         .short_keys = strict ? kStrictShortKeys : kShortKeys};
  for (RowGraphs* some : {&config.rows, &config.canvases}) {
    std::erase_if(some->sizes, [this](int32_t size) { return size > config_.max_tokens; });
  }
  SegmentGraphs& segments = config.segments;
  std::erase_if(segments.requests, [&](int32_t n) { return int64_t{n} * segments.keys.q_len > config_.max_tokens; });
  return config;
}

void ModelRunner::capture(const CudaGraphConfig& config) {
  no_graphs_ = "switched off";
  if (config_.graphs == RunnerConfig::Graphs::kOff) return;
  no_graphs_ = kUnbounded;
  if (records_nothing(config)) return;
  try {
    // The memory that graphs need is known only after capture.
    with_need({.what = str("recording steps of up to ", most_rows_of(config), " rows"), .advice = kShorterOrNoGraphs},
              [&] {
                auto graphs = std::make_unique<CudaGraphRunner>(model_, *backend_, runtime_, config);
                graphs->capture();
                graphs_ = std::move(graphs);
              });
  } catch (const Error& e) {
    failed_capture_ = no_graphs_ = e.what();
    runtime_.synchronize();  // throws if the device failed: then steps cannot run without graphs either
  }
}

std::string ModelRunner::describe() const {
  if (on_cpu()) return backend_->describe();
  return backend_->describe() + "; " + (graphs_ ? graphs_->describe() : "no graphs: " + no_graphs_);
}

ModelRunner::Logits ModelRunner::forward(const ForwardBatch& host, std::span<const int32_t> from) {
  if (graphs_ && graphs_->holds(host)) {
    ++num_graph_steps_;
    return {.owned = {}, .view = graphs_->run(host, [&](const TensorView& ids) { take_tokens(ids, from); })};
  }
  HR_REQUIRE(on_cpu() || device_batch_, ErrorCode::kInvalidArgument, "model runner: a batch runs before prepare()");
  const ForwardBatch& batch = on_cpu() ? host : device_batch_->upload(host);
  take_tokens(batch.input_ids, from);
  backend_->init_forward_metadata(batch);
  Logits logits{.owned = model_.forward(batch), .view = {}};
  logits.view = logits.owned;
  return logits;
}

void ModelRunner::take_tokens(const TensorView& ids, std::span<const int32_t> from) const {
  if (from.empty()) return;
  const Tensor there(DType::kI32, {std::ssize(from)}, runtime_);
  runtime_.copy_to_device(there.data(), from.data(), from.size_bytes());
  ops_->take_tokens({.ids = ids.slice(0, std::ssize(from)), .tokens = rows_[oldest_].tokens(), .from = there},
                    config_.context);
}

void ModelRunner::read_logprobs(const RowsInFlight& rows, const TensorView& logits, const StepReads& reads) const {
  const int64_t width = logits.dim(1), scored = rows.scored.dim(0), topped = rows.top_ids.dim(0);
  HR_REQUIRE(logits.dim(0) * width <= INT32_MAX, ErrorCode::kInvalidArgument, "model runner: ", logits.dim(0),
             " rows of ", width, " logits cannot be indexed");
  std::vector<int32_t> words;  // indices of the scored logits in the flattened rows, then rows whose likeliest are read
  for (const LogprobRow& one : reads.logprobs) {
    if (one.token >= 0) words.push_back(static_cast<int32_t>(one.row * width + one.token));
  }
  for (const LogprobRow& one : reads.logprobs) {
    if (one.count > 0) words.push_back(one.row);
  }
  const Tensor there(DType::kI32, {scored + topped}, runtime_);
  runtime_.copy_to_device(there.data(), words.data(), words.size() * sizeof(int32_t));
  if (scored > 0) {
    const TensorView all(logits.data(), DType::kF32, {logits.dim(0) * width, 1}, logits.device());
    const TensorView out(rows.scored.data(), DType::kF32, {scored, 1}, logits.device());
    ops_->embedding({.ids = there.view().slice(0, scored), .table = all, .out = out}, config_.context);
  }
  if (topped == 0) return;
  ops_->top_tokens({.logits = logits,
                    .vocab = reads.choice->vocab,
                    .excluded_id = reads.choice->excluded_id,
                    .rows = there.view().slice(scored, scored + topped),
                    .ids = rows.top_ids,
                    .top = rows.top},
                   config_.context);
}

void ModelRunner::draw_tokens(const RowsInFlight& rows, const TensorView& logits, const TokenChoice& choice) const {
  std::vector<TokenDraw> draws(choice.spots.size());
  std::ranges::transform(choice.spots, draws.begin(), draw_of);
  runtime_.copy_to_device(rows.draws.data(), draws.data(), draws.size() * sizeof(TokenDraw));
  ops_->sample_tokens({.logits = logits,
                       .vocab = choice.vocab,
                       .excluded_id = choice.excluded_id,
                       .best = rows.best,
                       .stats = rows.stats,
                       .draws = rows.draws,
                       .on_host = draws,
                       .ids = rows.ids,
                       .chosen = rows.chosen},
                      config_.context);
}

void ModelRunner::change(RowsInFlight& rows, const TensorView& logits, const TokenChoice& choice) {
  const auto [first, end] = rows.changes.changed_rows();
  ops_->token_confidence({logits.slice(first, end), choice.vocab, choice.excluded_id, rows.best.slice(first, end),
                          rows.model_stats.slice(first, end)},
                         config_.context);
  if (!processor_) processor_.emplace(*ops_, config_.context, runtime_, choice.vocab);
  processor_->apply(rows.changes, logits, choice.excluded_id, rows.model_logits);
}

void ModelRunner::keep_rows(const TensorView& logits, const KeptRows& kept) const {
  const TensorView from = logits.slice(kept.first, kept.first + kept.count);
  Tensor& to = *kept.to;
  if (!to || to.shape() != from.shape() || to.view().device() != runtime_.device()) {
    to = Tensor(DType::kF32, from.shape(), runtime_);
  }
  if (model_.info().dtype != DType::kBF16) {
    runtime_.copy_on_device(to.data(), from.data(), static_cast<size_t>(from.bytes()));
    return;
  }
  const Tensor one(DType::kF32, {1}, runtime_), rounded(DType::kBF16, from.shape(), runtime_);
  const float factor = 1;
  runtime_.copy_to_device(one.data(), &factor, sizeof factor);
  const TensorView ones(one.data(), DType::kF32, {kept.count, 1}, {0, 1}, runtime_.device());
  ops_->pointwise({.kind = PointwiseKind::kMul, .x = ones, .y = from, .out = rounded}, config_.context);
  ops_->pointwise({.kind = PointwiseKind::kMul, .x = ones, .y = rounded, .out = to}, config_.context);
}

void ModelRunner::launch(const ForwardBatch& batch, std::span<const int32_t> from) {
  HR_REQUIRE(num_in_flight_ < rows_.size() && (num_in_flight_ > 0 || from.empty()), ErrorCode::kInternal,
             "model runner: ", num_in_flight_, " steps are in flight");
  newest_rows_ = batch.num_tokens();
  if (gaps_) gaps_->note(StepGaps::kPassBegins);
  newest_ = with_need(need_of_step(newest_rows_), [&] { return forward(batch, from); });
  if (gaps_) gaps_->note(StepGaps::kPassEnds);
  ++num_in_flight_;
}

void ModelRunner::choose(const StepReads& reads) {
  HR_REQUIRE(num_in_flight_ > 0, ErrorCode::kInternal, "model runner: no step is in flight");
  const size_t slot = (oldest_ + num_in_flight_ - 1) % rows_.size();
  if (gaps_) gaps_->note(StepGaps::kChoiceBegins);
  results_[slot] =
      with_need(need_of_step(newest_rows_), [&] { return read(rows_[slot], std::exchange(newest_, {}), reads); });
  if (gaps_) gaps_->note(StepGaps::kChoiceEnds);
}

StepResult ModelRunner::read(RowsInFlight& rows, Logits logits, const StepReads& reads) {
  StepResult result;
  if (reads.logits == StepReads::Logits::kToHost) {
    // Choosing tokens changes the rows.
    const bool moves = on_cpu() && !reads.choice;
    result.logits = moves ? std::move(logits.owned) : on_host(runtime_, logits.view);
  }
  if (reads.choice) {
    choose_tokens(rows, logits.view, reads);
  } else if (!result.logits) {
    rows.changes.list({}, 1, 0);
    rows.begin(0, {});  // the host waits for the step all the same
    rows.send(rows.best);
  }
  if (reads.choice || !result.logits) result.tokens.emplace();  // received when the step is retired
  return result;
}

void ModelRunner::choose_tokens(RowsInFlight& rows, const TensorView& logits, const StepReads& reads) {
  const TokenChoice& choice = *reads.choice;
  rows.changes.list(choice.spots, logits.dim(1), choice.vocab);
  rows.begin(logits.dim(0), reads.logprobs);
  if (!reads.logprobs.empty()) read_logprobs(rows, logits, reads);
  if (rows.changes.any()) change(rows, logits, choice);
  for (const KeptRows& kept : choice.kept) keep_rows(logits, kept);
  ops_->token_confidence({logits, choice.vocab, choice.excluded_id, rows.best, rows.stats}, config_.context);
  const bool greedy =
      std::ranges::all_of(choice.spots, [](const SampleSpot& spot) { return spot.params->temperature == 0; });
  if (!greedy) draw_tokens(rows, logits, choice);
  rows.send(greedy ? rows.best : rows.ids);
}

StepResult ModelRunner::retire() {
  HR_REQUIRE(num_in_flight_ > 0, ErrorCode::kInternal, "model runner: no step is in flight");
  const size_t slot = oldest_;
  oldest_ = (oldest_ + 1) % rows_.size();
  --num_in_flight_;
  if (num_in_flight_ == 0) newest_ = {};
  StepResult result = std::exchange(results_[slot], {});
  if (!result.tokens) return result;
  result.tokens = rows_[slot].receive();
  result.logprobs = rows_[slot].logprobs(*result.tokens);
  if (gaps_) gaps_->end_step();
  return result;
}

Tensor ModelRunner::run(const ForwardBatch& batch) {
  launch(batch);
  choose({.logits = StepReads::Logits::kToHost});
  return retire().logits;
}

}  // namespace headrace
