#include "headrace/engine/batch_padding.h"

#include <algorithm>

namespace headrace {
namespace {

// Fills `to` with the first `count` elements of `from`, then `fill`, up to `size` elements.
template <class T>
TensorView filled(std::vector<T>& to, const TensorView& from, int64_t count, int32_t size, T fill) {
  to.assign(static_cast<size_t>(size), fill);
  if (count > 0) std::copy_n(static_cast<const T*>(from.data()), count, to.begin());
  return TensorView(to.data(), DTypeOf<T>::value, {size});
}

}  // namespace

std::vector<int32_t> capture_sizes(int32_t max) {
  std::vector<int32_t> sizes;
  for (const int32_t size : {1, 2, 4, 8, 12, 16}) {
    if (size < max) sizes.push_back(size);
  }
  for (int32_t size = 24; size < max; size += 8) sizes.push_back(size);
  if (max >= 1) sizes.push_back(max);
  return sizes;
}

const ForwardBatch& BatchPadding::fill(const ForwardBatch& batch, int32_t size) {
  const int64_t count = batch.batch_size();
  HR_REQUIRE(count <= size && batch.num_tokens() == count, ErrorCode::kInvalidArgument, "cuda graph: a batch of ",
             count, " requests and ", batch.num_tokens(), " tokens does not fit ", size, " decode rows");
  filled_ = batch;
  if (count == size) return filled_;
  filled_.attn.padding_rows = size - count;
  filled_.input_ids = filled<int32_t>(ids_, batch.input_ids, count, size, 0);
  filled_.positions = filled<int32_t>(positions_, batch.positions, count, size, 0);
  filled_.attn.write_slots = filled<int64_t>(write_slots_, batch.attn.write_slots, count, size, kDoNotStore);
  for (auto i = static_cast<int32_t>(count); i < size; ++i) {
    filled_.attn.spans.push_back({.q_off = i, .ctx_len = seq_len_fill_ - 1, .phys0 = seq_len_fill_ - 1});
    filled_.logits_rows.push_back(i);
  }
  if (states_ == States::kRecurrent) filled_.attn.state_slots.resize(static_cast<size_t>(size), StateSlots{});
  return filled_;
}

const ForwardBatch& BatchPadding::fill(const ForwardBatch& batch, const Sizes& sizes) {
  const auto rows = static_cast<int32_t>(batch.num_tokens()), logits = static_cast<int32_t>(batch.logits_rows.size());
  HR_REQUIRE(batch.batch_size() < sizes.spans && rows <= sizes.rows && logits <= sizes.logits_rows,
             ErrorCode::kInvalidArgument, "cuda graph: a batch of ", batch.batch_size(), " requests, ", rows,
             " rows and ", logits, " rows of logits does not fit ", sizes.spans - 1, ", ", sizes.rows, " and ",
             sizes.logits_rows);
  filled_ = batch;
  filled_.attn.padding_rows = sizes.rows - rows;
  filled_.input_ids = filled<int32_t>(ids_, batch.input_ids, rows, sizes.rows, 0);
  filled_.positions = filled<int32_t>(positions_, batch.positions, rows, sizes.rows, 0);
  filled_.attn.write_slots = filled<int64_t>(write_slots_, batch.attn.write_slots, rows, sizes.rows, kDoNotStore);
  filled_.attn.spans.resize(static_cast<size_t>(sizes.spans), {.q_off = rows, .q_len = 0});
  filled_.attn.spans.back() = {.q_off = rows, .q_len = sizes.rows - rows, .kind = KeySpan::Kind::kNone};
  if (states_ == States::kRecurrent) filled_.attn.state_slots.resize(static_cast<size_t>(sizes.spans), StateSlots{});
  filled_.logits_rows.resize(static_cast<size_t>(sizes.logits_rows), 0);
  return filled_;
}

}  // namespace headrace
