#include "headrace/cache/req_to_token_pool.h"

#include <algorithm>
#include <array>

namespace headrace {

ReqToTokenPool::ReqToTokenPool(int32_t max_requests, int32_t max_context_len, int32_t page_size, int32_t num_pages)
    : max_context_len_(max_context_len),
      page_size_(page_size),
      num_pages_(num_pages),
      rows_("request row", max_requests),
      pages_(Tensor::zeros(DType::kI32, {int64_t{max_requests} + 1, (max_context_len + page_size - 1) / page_size})),
      versions_(Tensor::zeros(DType::kI64, {int64_t{max_requests} + 1})),
      states_(Tensor::zeros(DType::kI32, {int64_t{max_requests} + 1})) {}

std::optional<int32_t> ReqToTokenPool::alloc() {
  const auto rows = rows_.alloc(1);
  if (!rows) return std::nullopt;
  return rows->front();
}

void ReqToTokenPool::free(int32_t row) {
  rows_.free(std::array{row});
  std::fill_n(pages_of(row), pages_.dim(1), 0);
  note_change(row);
  states_.data_as<int32_t>()[row] = 0;
}

void ReqToTokenPool::write(int32_t row, int32_t first_page, std::span<const int32_t> pages) {
  check_row(row);
  HR_REQUIRE(first_page >= 0 && first_page + static_cast<int64_t>(pages.size()) <= pages_.dim(1),
             ErrorCode::kInvalidArgument, "request row ", row, ": pages [", first_page, ", ",
             first_page + static_cast<int64_t>(pages.size()), ") are outside the ", pages_.dim(1),
             " pages of a context");
  for (const int32_t page : pages) {
    HR_REQUIRE(page >= 0 && page <= num_pages_, ErrorCode::kInvalidArgument, "request row ", row, ": page ", page,
               " is no page of the pool, expected 0 to ", num_pages_);
  }
  std::ranges::copy(pages, pages_of(row) + first_page);
  note_change(row);
}

int64_t ReqToTokenPool::slot_of(int32_t row, int32_t position) const {
  check_row(row);
  HR_REQUIRE(position >= 0 && position / page_size_ < pages_.dim(1), ErrorCode::kInvalidArgument, "request row ", row,
             ": position ", position, " is outside the context of ", max_context_len_, " tokens");
  const int64_t page = pages_of(row)[position / page_size_];
  return page * page_size_ + position % page_size_;
}

void ReqToTokenPool::set_state_slot(int32_t row, int32_t state_slot) {
  check_row(row);
  states_.data_as<int32_t>()[row] = state_slot;
}

void ReqToTokenPool::check_row(int32_t row) const {
  HR_REQUIRE(row >= 1 && row < pages_.dim(0), ErrorCode::kInvalidArgument, "request row ", row, " is outside 1..",
             pages_.dim(0) - 1);
}

}  // namespace headrace
