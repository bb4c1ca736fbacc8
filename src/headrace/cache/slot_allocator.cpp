#include "headrace/cache/slot_allocator.h"

#include <algorithm>
#include <utility>

#include "headrace/core/error.h"

namespace headrace {

SlotAllocator::SlotAllocator(std::string name, int32_t size) : name_(std::move(name)), size_(size) {
  HR_REQUIRE(size >= 0, ErrorCode::kInvalidArgument, name_, " allocator: size is ", size, ", expected 0 or more");
  clear();
}

void SlotAllocator::clear() {
  free_.assign(static_cast<size_t>(size_) + 1, true);
  free_[0] = false;
  available_ = size_;
  lowest_ = 1;
}

std::optional<std::vector<int32_t>> SlotAllocator::alloc(int32_t count) {
  HR_REQUIRE(count >= 0, ErrorCode::kInvalidArgument, name_, " allocator: count is ", count, ", expected 0 or more");
  if (count > available_) return std::nullopt;
  std::vector<int32_t> slots;
  slots.reserve(static_cast<size_t>(count));
  for (int32_t slot = lowest_; static_cast<int32_t>(slots.size()) < count; ++slot) {
    if (!is_free(slot)) continue;
    free_[static_cast<size_t>(slot)] = false;
    slots.push_back(slot);
    lowest_ = slot + 1;
  }
  available_ -= count;
  return slots;
}

void SlotAllocator::free(std::span<const int32_t> slots) {
  for (size_t i = 0; i < slots.size(); ++i) {
    const int32_t slot = slots[i];
    const bool in_range = slot >= 1 && slot <= size_;
    if (in_range && !is_free(slot)) {
      free_[static_cast<size_t>(slot)] = true;
      continue;
    }
    for (size_t j = 0; j < i; ++j) free_[static_cast<size_t>(slots[j])] = false;  // undo: all or nothing
    throw Error(ErrorCode::kInvalidArgument,
                str(name_, " allocator: slot ", slot, in_range ? " is already free" : " is outside 1..",
                    in_range ? std::string() : std::to_string(size_)));
  }
  available_ += static_cast<int32_t>(slots.size());
  for (const int32_t slot : slots) lowest_ = std::min(lowest_, slot);
}

}  // namespace headrace
