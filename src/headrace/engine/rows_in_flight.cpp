#include "headrace/engine/rows_in_flight.h"

#include <algorithm>
#include <cstring>

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
  if (host_ != nullptr) runtime_.release_shared(host_, bytes_of(capacity_ * kWords));
  host_ = nullptr;
  capacity_ = 0;
}

void RowsInFlight::make_room(int64_t rows) {
  if (rows <= capacity_) return;
  if (!arrived_) arrived_ = runtime_.make_event();
  give_back();
  memory_ = Tensor(DType::kI32, {rows * kWords}, runtime_);
  draws_ = Tensor(DType::kU8, {rows, static_cast<int64_t>(sizeof(TokenDraw))}, runtime_);
  host_ = runtime_.allocate_shared(bytes_of(rows * kWords));
  capacity_ = rows;
}

void RowsInFlight::begin(int64_t rows, Changed changed) {
  make_room(rows);
  rows_ = rows, changed_ = changed;
  auto* at = static_cast<int32_t*>(memory_.data());
  const Device device = runtime_.device();
  best = TensorView(at, DType::kI32, {rows}, device);
  stats = TensorView(at + rows, DType::kF32, {rows, 4}, device);
  ids = TensorView(at + 5 * rows, DType::kI32, {rows}, device);
  chosen = TensorView(at + 6 * rows, DType::kF32, {rows}, device);
  model_stats = TensorView(at + kUnchangedWords * rows, DType::kF32, {rows, 4}, device);
  draws = draws_.view().slice(0, rows);
}

void RowsInFlight::send(const TensorView& tokens) {
  tokens_ = tokens;
  const int64_t words = changed_ == Changed::kYes ? kWords : kUnchangedWords;
  runtime_.copy_on_device(host_, memory_.data(), bytes_of(rows_ * words));
  arrived_->set();
}

ChosenRows RowsInFlight::receive() {
  arrived_->wait();
  ChosenRows rows{Tensor(DType::kI32, {rows_}), Tensor(DType::kF32, {rows_, 4}), Tensor(DType::kI32, {rows_}),
                  Tensor(DType::kF32, {rows_})};
  const auto* from = static_cast<const char*>(host_);
  for (const Tensor* part : {&rows.best, &rows.stats, &rows.ids, &rows.logits}) {
    std::memcpy(part->data(), from, static_cast<size_t>(part->bytes()));
    from += part->bytes();
  }
  if (changed_ == Changed::kYes) {
    rows.model_stats = Tensor(DType::kF32, {rows_, 4});
    std::memcpy(rows.model_stats.data(), from, static_cast<size_t>(rows.model_stats.bytes()));
  }
  if (tokens_.data() != best.data()) return rows;
  std::copy_n(rows.best.data_as<int32_t>(), rows_, rows.ids.data_as<int32_t>());
  for (int64_t r = 0; r < rows_; ++r) rows.logits.data_as<float>()[r] = rows.stats.data_as<float>()[4 * r];
  return rows;
}

}  // namespace headrace
