#include "headrace/cache/slot_allocator.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <set>

#include "headrace/core/error.h"

namespace headrace {
namespace {

TEST(SlotAllocator, HandsOutTheSmallestSlotsAndNeverSlotZero) {
  SlotAllocator allocator("page", 4);
  EXPECT_EQ(*allocator.alloc(3), (std::vector<int32_t>{1, 2, 3}));
  allocator.free(std::array{2});
  EXPECT_EQ(*allocator.alloc(2), (std::vector<int32_t>{2, 4}));
}

TEST(SlotAllocator, HandsOutTheSmallestSlotsOfManyWhicheverAreFree) {
  for (const int32_t size : {63, 64, 65, 127, 128, 1000}) {
    SlotAllocator allocator("page", size);
    ASSERT_EQ(allocator.alloc(size)->back(), size);
    EXPECT_FALSE(allocator.alloc(1));
    allocator.free(std::array{size, 1});
    EXPECT_EQ(*allocator.alloc(2), (std::vector<int32_t>{1, size}));
    EXPECT_FALSE(allocator.is_free(size));
    allocator.clear();
    EXPECT_EQ(allocator.alloc(size)->size(), static_cast<size_t>(size));
  }
}

TEST(SlotAllocator, AllocReturnsNulloptWhenFullAndChangesNothing) {
  SlotAllocator allocator("page", 2);
  EXPECT_FALSE(allocator.alloc(3));
  EXPECT_EQ(allocator.available_size(), 2);
}

TEST(SlotAllocator, RefusesWhatItNeverHandedOutAndKeepsItsState) {
  SlotAllocator allocator("page", 3);
  ASSERT_TRUE(allocator.alloc(2));
  for (const auto& bad : {std::vector<int32_t>{1, 0}, {1, 4}, {1, 3}, {1, 1}, {-1}}) {
    EXPECT_THROW(allocator.free(bad), Error);
    EXPECT_EQ(allocator.available_size(), 1);
    EXPECT_FALSE(allocator.is_free(1));
  }
}

// Every slot is exactly one of free or owned, after any sequence of calls.
RC_GTEST_PROP(SlotAllocator, EverySlotIsFreeOrOwnedExactlyOnce, ()) {
  const int32_t size = *rc::gen::inRange(0, 200);
  SlotAllocator allocator("page", size);
  std::set<int32_t> owned;
  for (const int32_t call : *rc::gen::container<std::vector<int32_t>>(rc::gen::inRange(-70, 80))) {
    if (call >= 0) {
      const auto slots = allocator.alloc(call);
      RC_ASSERT(slots.has_value() == (call <= size - static_cast<int32_t>(owned.size())));
      for (const int32_t slot : slots.value_or(std::vector<int32_t>())) {
        RC_ASSERT(slot >= 1 && slot <= size);
        for (int32_t lower = 1; lower < slot; ++lower) RC_ASSERT(!allocator.is_free(lower));
        RC_ASSERT(owned.insert(slot).second);
      }
    } else if (static_cast<int32_t>(owned.size()) >= -call) {
      const std::vector<int32_t> back(owned.begin(), std::next(owned.begin(), -call));
      allocator.free(back);
      for (const int32_t slot : back) owned.erase(slot);
    }
    RC_ASSERT(allocator.available_size() == size - static_cast<int32_t>(owned.size()));
    for (int32_t slot = 1; slot <= size; ++slot) RC_ASSERT(allocator.is_free(slot) != owned.contains(slot));
    RC_ASSERT(!allocator.is_free(0));
  }
}

}  // namespace
}  // namespace headrace
