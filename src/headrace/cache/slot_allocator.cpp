#include "headrace/cache/slot_allocator.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "headrace/core/error.h"

namespace headrace {

SlotAllocator::SlotAllocator(std::string name, int32_t size) : name_(std::move(name)), size_(size) {
  HR_REQUIRE(size >= 0, ErrorCode::kInvalidArgument, name_, " allocator: size is ", size, ", expected 0 or more");
  clear();
}

void SlotAllocator::clear() {
  free_.assign(static_cast<size_t>(size_ / kWordBits) + 1, ~uint64_t{0});
  free_.back() >>= kWordBits - 1 - size_ % kWordBits;
  free_.front() &= ~bit_of(0);
  available_ = size_;
  first_word_ = 0;
}

std::optional<std::vector<int32_t>> SlotAllocator::alloc(int32_t count) {
  HR_REQUIRE(count >= 0, ErrorCode::kInvalidArgument, name_, " allocator: count is ", count, ", expected 0 or more");
  if (count > available_) return std::nullopt;
  std::vector<int32_t> slots;
  slots.reserve(static_cast<size_t>(count));
  while (static_cast<int32_t>(slots.size()) < count) {
    uint64_t& word = free_[first_word_];
    if (word == 0) {
      ++first_word_;
      continue;
    }
    slots.push_back(static_cast<int32_t>(first_word_) * kWordBits + std::countr_zero(word));
    word &= word - 1;  // clears its lowest bit
  }
  available_ -= count;
  return slots;
}

void SlotAllocator::free(std::span<const int32_t> slots) {
  for (size_t i = 0; i < slots.size(); ++i) {
    const int32_t slot = slots[i];
    const bool in_range = slot >= 1 && slot <= size_;
    if (in_range && !is_free(slot)) {
      word_of(slot) |= bit_of(slot);
      continue;
    }
    for (size_t j = 0; j < i; ++j) word_of(slots[j]) &= ~bit_of(slots[j]);  // undo: all or nothing
    throw Error(ErrorCode::kInvalidArgument,
                str(name_, " allocator: slot ", slot, in_range ? " is already free" : " is outside 1..",
                    in_range ? std::string() : std::to_string(size_)));
  }
  available_ += static_cast<int32_t>(slots.size());
  for (const int32_t slot : slots) first_word_ = std::min(first_word_, static_cast<size_t>(slot / kWordBits));
}

}  // namespace headrace
