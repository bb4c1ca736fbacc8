// The request table: the pages of each request's tokens and the slot of its recurrent state.
#pragma once
#include <cstdint>
#include <optional>
#include <span>

#include "headrace/cache/slot_allocator.h"
#include "headrace/core/tensor.h"

namespace headrace {

// Rows 1..max_requests are allocated; row 0 is reserved for padding and all zeros. With page size 1 a row is pymllm's
// position -> slot map. A freed row is cleared, so no stale page outlives its request. Host memory; not thread-safe.
class ReqToTokenPool {
 public:
  // max_context_len in tokens. `num_pages`: the KV pool's; write() accepts pages 0 to num_pages.
  ReqToTokenPool(int32_t max_requests, int32_t max_context_len, int32_t page_size, int32_t num_pages = INT32_MAX);

  int32_t max_context_len() const { return max_context_len_; }
  int32_t page_size() const { return page_size_; }
  int32_t available_size() const { return rows_.available_size(); }

  std::optional<int32_t> alloc();  // returns a row, or nothing if all are taken
  void free(int32_t row);          // Error kInvalidArgument as SlotAllocator::free

  // Writes pages at [first_page, first_page + pages.size()) of `row`. Error kInvalidArgument, without effect, past the
  // row's end and for a page that the KV pool does not have.
  void write(int32_t row, int32_t first_page, std::span<const int32_t> pages);
  // Returns the slot of a token's K and V. `position` must lie in a written page.
  int64_t slot_of(int32_t row, int32_t position) const;

  // int32 [max_requests + 1, pages]. Only write() and free() change it: row_versions() and pages_below() rely on that.
  TensorView page_table() const { return pages_; }
  TensorView row_versions() const { return versions_; }            // AttnMetadata::row_versions
  int64_t pages_below() const { return int64_t{num_pages_} + 1; }  // AttnMetadata::pages_below
  TensorView state_slots() const { return states_; }               // int32 [max_requests + 1]
  void set_state_slot(int32_t row, int32_t state_slot);

 private:
  void check_row(int32_t row) const;
  int32_t* pages_of(int32_t row) const { return pages_.data_as<int32_t>() + row * pages_.dim(1); }
  void note_change(int32_t row) { versions_.data_as<int64_t>()[row] = ++last_version_; }

  int32_t max_context_len_, page_size_, num_pages_;
  SlotAllocator rows_;
  Tensor pages_, versions_, states_;
  int64_t last_version_ = 0;
};

}  // namespace headrace
