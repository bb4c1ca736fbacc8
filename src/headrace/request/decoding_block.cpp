#include "headrace/request/decoding_block.h"

#include <algorithm>

#include "headrace/core/error.h"

namespace headrace {

DecodingBlock::DecodingBlock(int32_t begin, int32_t end, int32_t editable_begin, int32_t valid_end)
    : begin_(begin), editable_begin_(editable_begin), valid_end_(std::min(valid_end, end)) {
  HR_REQUIRE(begin < end && begin <= editable_begin && editable_begin <= end, ErrorCode::kInternal, "decoding block ",
             begin, "..", end, ": its first editable position is ", editable_begin);
  masked_.assign(static_cast<size_t>(end - begin), true);
  std::fill_n(masked_.begin(), editable_begin - begin, false);
}

DecodingBlock DecodingBlock::of_prompt(int32_t begin, int32_t end) {
  DecodingBlock block(begin, end, end, end);
  block.commit();
  return block;
}

int32_t DecodingBlock::num_masked() const {
  return static_cast<int32_t>(std::count(masked_.begin(), masked_.begin() + (valid_end_ - begin_), true));
}

std::vector<int32_t> DecodingBlock::masked_positions() const {
  std::vector<int32_t> positions;
  for (int32_t p = editable_begin_; p < valid_end_; ++p) {
    if (masked(p)) positions.push_back(p);
  }
  return positions;
}

float DecodingBlock::progress() const {
  const int32_t valid = valid_end_ - begin_;
  return valid == 0 ? 1.0f : static_cast<float>(valid - num_masked()) / static_cast<float>(valid);
}

int32_t DecodingBlock::decided_end() const {
  const auto last = masked_.begin() + (valid_end_ - begin_);
  return begin_ + static_cast<int32_t>(std::find(masked_.begin(), last, true) - masked_.begin());
}

void DecodingBlock::check_writable(int32_t position) const {
  HR_REQUIRE(is_active() && position >= editable_begin_ && position < valid_end_, ErrorCode::kInternal,
             "decoding block ", begin_, "..", end(), ": position ", position, " is written, expected ", editable_begin_,
             " to ", valid_end_ - 1, " of an active block");
}

void DecodingBlock::decide(int32_t position) {
  check_writable(position);
  masked_[static_cast<size_t>(position - begin_)] = false;
}

void DecodingBlock::remask(int32_t position) {
  check_writable(position);
  masked_[static_cast<size_t>(position - begin_)] = true;
}

void DecodingBlock::clip(int32_t valid_end) { valid_end_ = std::clamp(valid_end, begin_, valid_end_); }

void DecodingBlock::commit() {
  HR_REQUIRE(settled(), ErrorCode::kInternal, "decoding block ", begin_, "..", end(), ": committed with ", num_masked(),
             " masks", open_ ? " while its tokens may change" : "");
  state_ = State::kToCache;
}

}  // namespace headrace
