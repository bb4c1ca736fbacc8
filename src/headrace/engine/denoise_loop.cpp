#include "headrace/engine/denoise_loop.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <optional>
#include <utility>

#include "headrace/core/device_runtime.h"

namespace headrace {
namespace {

constexpr int32_t kPolls = 1 << 25;     // some tens of milliseconds; then synchronize
constexpr size_t kResultsOffset = 256;  // bytes; after the report

}  // namespace

DenoiseLoop::DenoiseLoop(const OpSet& ops, const OpContext& context, DeviceRuntime& runtime,
                         const BlockLoopConfig& config, const BatchRows& rows)
    : ops_(ops), context_(context), runtime_(runtime), config_(config), rows_(rows) {
  const int64_t requests = config.max_requests, results = requests * config.block_size;
  const std::vector<int32_t>& largest = config.canvas_len > 0 ? config.canvas_sizes : config.sizes;
  const int64_t most = config.least_size();
  HR_REQUIRE(!largest.empty() && largest.back() >= most, ErrorCode::kInvalidArgument,
             "denoise loop: the largest step of ", requests, " requests has ", most, " rows, graphs have ",
             largest.empty() ? 0 : largest.back());
  states_ = Tensor::zeros(DType::kU8, {requests * static_cast<int64_t>(sizeof(DenoiseState))}, runtime);
  tokens_ = Tensor::zeros(DType::kI32, {requests, config.tokens_each()}, runtime);
  counter_ = Tensor::zeros(DType::kI32, {2}, runtime);
  std::vector<int32_t> sizes = config.sizes;
  sizes.insert(sizes.end(), config.canvas_sizes.begin(), config.canvas_sizes.end());
  sizes_ = Tensor(DType::kI32, {static_cast<int64_t>(sizes.size())}, runtime);
  runtime.copy_to_device(sizes_.data(), sizes.data(), sizes.size() * sizeof(int32_t));
  best_ = Tensor::zeros(DType::kI32, {results}, runtime);
  stats_ = Tensor::zeros(DType::kF32, {results, 4}, runtime);
  ids_ = Tensor::zeros(DType::kI32, {results}, runtime);
  logits_ = Tensor::zeros(DType::kF32, {results}, runtime);
  draws_ = Tensor::zeros(DType::kU8, {results, static_cast<int64_t>(sizeof(TokenDraw))}, runtime);
  all_states_.resize(static_cast<size_t>(requests));
  shared_bytes_ = kResultsOffset + static_cast<size_t>(2 * results * kResultWords) * sizeof(int32_t);
  shared_ = runtime.allocate_shared(shared_bytes_);
}

DenoiseLoop::~DenoiseLoop() {
  try {
    runtime_.synchronize();
  } catch (const Error&) {  // a failed device writes nothing more
  }
  runtime_.release_shared(shared_, shared_bytes_);
}

int32_t* DenoiseLoop::results_of(int32_t step) const {
  return reinterpret_cast<int32_t*>(static_cast<char*>(shared_) + kResultsOffset) +
         step % 2 * best_.dim(0) * kResultWords;
}

void DenoiseLoop::end_step(const TensorView& logits) {
  const int64_t count = std::min(logits.dim(0), best_.dim(0));
  const int32_t excluded = config_.mask_token_id;
  ops_.token_confidence({.logits = logits.slice(0, count),
                         .vocab = config_.vocab,
                         .excluded_id = excluded,
                         .best = best_.view().slice(0, count),
                         .stats = stats_.view().slice(0, count)},
                        context_);
  ops_.sample_tokens({.logits = logits.slice(0, count),
                      .vocab = config_.vocab,
                      .excluded_id = excluded,
                      .best = best_.view().slice(0, count),
                      .stats = stats_.view().slice(0, count),
                      .draws = draws_.view().slice(0, count),
                      .on_host = {},
                      .ids = ids_.view().slice(0, count),
                      .chosen = logits_.view().slice(0, count)},
                     context_);
  const Device device = runtime_.device();
  ops_.denoise_step({.best = best_,
                     .stats = stats_,
                     .ids = ids_,
                     .logits = logits_,
                     .draws = draws_,
                     .states = states_,
                     .tokens = tokens_,
                     .counter = counter_,
                     .sizes = sizes_,
                     .block_sizes = static_cast<int32_t>(config_.sizes.size()),
                     .most_rows = config_.most_rows(),
                     .block_size = config_.block_size,
                     .mask_token_id = config_.mask_token_id,
                     .page_size = config_.page_size,
                     .rows = rows_,
                     .report = TensorView(shared_, DType::kU8, {static_cast<int64_t>(sizeof(DenoiseReport))}, device),
                     .results = TensorView(results_of(0), DType::kI32, {2, best_.dim(0), kResultWords}, device)},
                    context_);
}

bool DenoiseLoop::holds(std::span<const DenoiseState> states) const {
  int64_t rows = 0;
  for (const DenoiseState& s : states) {
    rows += s.most_rows(config_.block_size);
    if (s.canvas_len > config_.canvas_len) return false;
  }
  return rows <= config_.most_rows();
}

std::vector<TokenDraw> DenoiseLoop::draws_of(std::span<const DenoiseState> states) const {
  std::vector<TokenDraw> draws;
  for (const DenoiseState& s : states) {
    const auto end = draws.size() + (s.running != 0 ? static_cast<size_t>(s.num_samples(config_.block_size)) : 0);
    for (int32_t p = 0; draws.size() < end; ++p) {  // the sample of a commit pass lies after the block
      if (p == config_.block_size || s.is_masked(p)) draws.push_back(s.draw_of(p));
    }
  }
  draws.resize(static_cast<size_t>(draws_.dim(0)));
  return draws;
}

void DenoiseLoop::load(std::span<const DenoiseState> states, std::span<const int32_t> tokens) {
  HR_REQUIRE(states.size() <= all_states_.size() && holds(states) &&
                 tokens.size() == states.size() * static_cast<size_t>(config_.tokens_each()),
             ErrorCode::kInvalidArgument, "denoise loop: ", states.size(), " requests and ", tokens.size(),
             " tokens, expected at most ", all_states_.size(), " requests and ", config_.most_rows(), " rows");
  if (in_flight_ > 0) runtime_.synchronize();
  in_flight_ = 0;
  std::ranges::fill(all_states_, DenoiseState{});
  std::ranges::copy(states, all_states_.begin());
  logits_rows_ = decided_rows_ = 0;
  for (DenoiseState& s : all_states_) {
    s.first_logit = logits_rows_;
    logits_rows_ += s.running != 0 ? s.num_samples(config_.block_size) : 0;
  }
  steps_ = 0;
  static_cast<DenoiseReport*>(shared_)->step = 0;  // nothing is in flight
  const std::array<int32_t, 2> counter = {0, logits_rows_};
  runtime_.copy_to_device(states_.data(), all_states_.data(), all_states_.size() * sizeof(DenoiseState));
  runtime_.copy_to_device(tokens_.data(), tokens.data(), tokens.size_bytes());
  const std::vector<TokenDraw> draws = draws_of(states);
  runtime_.copy_to_device(draws_.data(), draws.data(), draws.size() * sizeof(TokenDraw));
  runtime_.copy_to_device(counter_.data(), counter.data(), sizeof counter);
}

DenoiseReport DenoiseLoop::wait() {
  HR_REQUIRE(in_flight_ > 0, ErrorCode::kInternal, "denoise loop: no step is in flight");
  auto* report = static_cast<DenoiseReport*>(shared_);
  const std::atomic_ref<int32_t> arrived(report->step);
  const int32_t wanted = steps_ + in_flight_;
  for (int32_t i = 0; arrived.load(std::memory_order_acquire) != wanted; ++i) {
    if (i < kPolls) continue;
    runtime_.synchronize();
    HR_REQUIRE(arrived.load(std::memory_order_acquire) == wanted, ErrorCode::kInternal,
               "denoise loop: the device is done, but step ", wanted, " did not report");
  }
  in_flight_ = 0;
  steps_ = wanted;
  decided_rows_ = std::exchange(logits_rows_, report->logits_rows);
  return *report;
}

ChosenRows DenoiseLoop::decided() const {
  ChosenRows rows{Tensor(DType::kI32, {decided_rows_}), Tensor(DType::kF32, {decided_rows_, 4}),
                  Tensor(DType::kI32, {decided_rows_}), Tensor(DType::kF32, {decided_rows_})};
  const int32_t* from = results_of(steps_);
  for (int64_t i = 0; i < decided_rows_; ++i, from += kResultWords) {
    rows.best.data_as<int32_t>()[i] = from[0];
    std::memcpy(rows.stats.data_as<float>() + 4 * i, from + 1, 4 * sizeof(float));
    rows.ids.data_as<int32_t>()[i] = from[5];
    std::memcpy(rows.logits.data_as<float>() + i, from + 6, sizeof(float));
  }
  return rows;
}

}  // namespace headrace
