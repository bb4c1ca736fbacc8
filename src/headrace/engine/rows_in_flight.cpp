#include "headrace/engine/rows_in_flight.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace headrace {
namespace {

constexpr int64_t kWords = 11;          // per row: best, stats, id, logit, model_stats
constexpr int64_t kUnchangedWords = 7;  // per row: without model_stats

size_t bytes_of(int64_t words) { return static_cast<size_t>(words) * sizeof(int32_t); }

}  // namespace

RowsInFlight::~RowsInFlight() {
  try {
    if (arrived_) runtime_.synchronize();
  } catch (const Error&) {  // a failed device writes nothing more
  }
  give_back();
}

void RowsInFlight::give_back() noexcept {
  if (host_ != nullptr) runtime_.release_shared(host_, bytes_of(capacity_));
  host_ = nullptr;
  capacity_ = 0;
}

void RowsInFlight::make_room(int64_t words, int64_t rows) {
  if (!arrived_) arrived_ = runtime_.make_event();
  if (words > capacity_) {
    give_back();
    memory_ = Tensor(DType::kI32, {words}, runtime_);
    host_ = runtime_.allocate_shared(bytes_of(words));
    capacity_ = words;
  }
  if (rows > 0 && (!draws_ || draws_.view().dim(0) < rows)) {
    draws_ = Tensor(DType::kU8, {rows, static_cast<int64_t>(sizeof(TokenDraw))}, runtime_);
  }
}

void RowsInFlight::begin(int64_t rows, std::span<const LogprobRow> logprobs) {
  if (std::exchange(is_sent_, false)) arrived_->wait();  // receive() threw: the copy may still come
  asked_.assign(logprobs.begin(), logprobs.end());
  const int64_t num_scored = std::ranges::count_if(asked_, [](const LogprobRow&one) { return one.token >= 0; }),
                num_topped = std::ranges::count_if(asked_, [](const LogprobRow&one) { return one.count > 0; });
  const int64_t most = asked_.empty() ? 0 : std::ranges::max(asked_, {}, &LogprobRow::count).count;
  rows_ = rows;
  const int64_t of_rows = rows * (changes.any() ? kWords : kUnchangedWords), additions = changes.num_additions();
  words_ = of_rows + num_scored + 2 * num_topped * most + additions;
  make_room(std::max<int64_t>(words_, 1), rows);  // a step without rows is waited for, too
  auto* at = static_cast<int32_t*>(memory_.data());
  const Device device = runtime_.device();
  best = TensorView(at, DType::kI32, {rows}, device);
  stats = TensorView(at + rows, DType::kF32, {rows, 4}, device);
  ids = TensorView(at + 5 * rows, DType::kI32, {rows}, device);
  chosen = TensorView(at + 6 * rows, DType::kF32, {rows}, device);
  model_stats = TensorView(at + kUnchangedWords * rows, DType::kF32, {rows, 4}, device);
  if (rows > 0) draws = draws_.view().slice(0, rows);
  scored = TensorView(at + of_rows, DType::kF32, {num_scored}, device);
  top_ids = TensorView(at + of_rows + num_scored, DType::kI32, {num_topped, most}, device);
  top = TensorView(at + of_rows + num_scored + num_topped * most, DType::kF32, {num_topped, most}, device);
  model_logits = TensorView(at + words_ - additions, DType::kF32, {additions}, device);
}

void RowsInFlight::send(const TensorView& tokens) {
  tokens_ = tokens;
  runtime_.copy_on_device(host_, memory_.data(), bytes_of(words_));
  arrived_->set();
  is_sent_ = true;
}

const char* RowsInFlight::on_host(const TensorView& there) const {
  return static_cast<const char*>(host_) +
         (static_cast<const char*>(there.data()) - static_cast<const char*>(memory_.data()));
}

std::vector<RowLogprobs> RowsInFlight::logprobs(const ChosenRows& rows) const {
  const Tensor& stats_of = rows.model_stats ? rows.model_stats : rows.stats;
  const auto* logits = reinterpret_cast<const float*>(on_host(scored));
  const auto* likeliest = reinterpret_cast<const int32_t*>(on_host(top_ids));
  const auto* their_logits = reinterpret_cast<const float*>(on_host(top));
  std::vector<RowLogprobs> all;
  for (const LogprobRow& one : asked_) {
    const float* s = stats_of.data_as<float>() + int64_t{4} * one.row;  // largest, log_sum
    RowLogprobs& row = all.emplace_back();
    if (one.token >= 0) row.logprob = *logits++ - s[0] - s[1];
    if (one.count == 0) continue;
    for (int32_t i = 0; i < one.count && likeliest[i] >= 0; ++i) {
      row.top.push_back({likeliest[i], their_logits[i] - s[0] - s[1]});
    }
    likeliest += top.dim(1), their_logits += top.dim(1);
  }
  return all;
}

ChosenRows RowsInFlight::receive() {
  arrived_->wait();
  is_sent_ = false;
  ChosenRows rows{Tensor(DType::kI32, {rows_}), Tensor(DType::kF32, {rows_, 4}), Tensor(DType::kI32, {rows_}),
                  Tensor(DType::kF32, {rows_})};
  const auto* from = static_cast<const char*>(host_);
  for (const Tensor* part : {&rows.best, &rows.stats, &rows.ids, &rows.logits}) {
    std::memcpy(part->data(), from, static_cast<size_t>(part->bytes()));
    from += part->bytes();
  }
  if (changes.any()) {
    rows.changes = &changes;
    rows.model_stats = Tensor(DType::kF32, {rows_, 4});
    rows.model_logits = Tensor(DType::kF32, model_logits.shape());
    const auto [first, end] = changes.changed_rows();
    std::memcpy(rows.model_stats.data(), rows.stats.data(), static_cast<size_t>(rows.stats.bytes()));
    const auto bytes_of_rows = [](int64_t count) { return bytes_of(4 * count); };
    std::memcpy(rows.model_stats.data_as<float>() + 4 * first, from + bytes_of_rows(first), bytes_of_rows(end - first));
    std::memcpy(rows.model_logits.data(), on_host(model_logits), static_cast<size_t>(model_logits.bytes()));
  }
  if (tokens_.data() != best.data()) return rows;
  std::copy_n(rows.best.data_as<int32_t>(), rows_, rows.ids.data_as<int32_t>());
  for (int64_t r = 0; r < rows_; ++r) rows.logits.data_as<float>()[r] = rows.stats.data_as<float>()[4 * r];
  return rows;
}

}  // namespace headrace
