// The division of one budget into pages and states.
#include "headrace/cache/memory_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "support/refusal.h"

namespace headrace {
namespace {

using CachesText = CacheNeeds::CachesText;

struct Shape {
  const char* name;
  int64_t token_bytes, state_bytes;
};

// bench/shapes, K and V in bfloat16.
constexpr Shape kDense4B{"qwen3_4b", 36 * 8 * 256 * 2, 0};
constexpr Shape kHybrid{"qwen3_5_0_8b", 6 * 2 * 512 * 2, 18 * (16 * 128 * 128 * 4 + 6144 * 3 * 2)};
constexpr Shape kNext{"qwen3_next_8_layers", 2 * 2 * 512 * 2, 6 * (32 * 128 * 128 * 4 + 8192 * 3 * 2)};
constexpr std::array kShapes = {kDense4B, kHybrid, kNext};

CacheNeeds needs_of(const Shape& shape, int32_t context = 8192, int32_t requests = 1,
                    CachesText caches = CachesText::kYes) {
  return {.page_bytes = 64 * shape.token_bytes,
          .state_bytes = shape.state_bytes,
          .page_size = 64,
          .max_requests = requests,
          .max_context_len = context,
          .caches_text = caches};
}

constexpr int64_t kGB = 1000000000;

struct Row {
  Shape shape;
  int64_t budget;
  int32_t context, requests, num_pages, num_states;
  const char* reasons;
};

TEST(MemoryPlan, FollowsTheTable) {
  const Row rows[] = {
      {kDense4B, 4 * kGB, 8192, 1, 422, 0,
       "4.0 GB = 27008 tokens of K and V (147.5 kB a token), for a context of 8192 tokens and cached text"},
      {kDense4B, 129 * 64 * kDense4B.token_bytes, 8192, 1, 128, 0,
       "1.2 GB = 8192 tokens of K and V (147.5 kB a token), for a context of 8192 tokens"},
      {kHybrid, kGB, 8192, 1, 848, 16,
       "999.8 MB = 54272 tokens of K and V (12.3 kB a token) and 16 recurrent states of 19.5 MB, one for each chat of "
       "4096 tokens and a fifth more"},
      {kHybrid, 10 * kGB, 8192, 64, 7596, 205,
       "10.0 GB = 486144 tokens of K and V (12.3 kB a token) and 205 recurrent states of 19.5 MB, one for each chat of "
       "4096 tokens and a fifth more"},
      {kHybrid, 35 * kGB / 10, 262144, 1, 4101, 13,
       "3.5 GB = 262464 tokens of K and V (12.3 kB a token) and 13 recurrent states of 19.5 MB, for a context of "
       "262144 tokens"},
      {kNext, kGB, 8192, 1, 1946, 37,
       "999.8 MB = 124544 tokens of K and V (4.1 kB a token) and 37 recurrent states of 12.9 MB, one for each chat of "
       "4096 tokens and a fifth more"},
      {kNext, kGB, 1024, 1, 817, 60,
       "1.0 GB = 52288 tokens of K and V (4.1 kB a token) and 60 recurrent states of 12.9 MB, one for each chat of "
       "1024 tokens and a fifth more"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(str(row.shape.name, " ", row.budget, " ", row.context, " ", row.requests));
    const MemoryPlan plan = plan_memory(row.budget, needs_of(row.shape, row.context, row.requests));
    EXPECT_EQ(plan.num_pages, row.num_pages);
    EXPECT_EQ(plan.num_states, row.num_states);
    EXPECT_EQ(plan.reasons, row.reasons);
  }
}

// For budgets from the least to 64 times as much: the least fits, nothing is wasted, and pages and states are in
// proportion unless the context needs all pages.
TEST(MemoryPlan, UsesTheBudgetAndBalancesPagesAndStates) {
  for (const Shape& shape : kShapes) {
    for (const int32_t context : {512, 8192, 262144}) {
      for (const int32_t requests : {1, 64}) {
        const CacheNeeds needs = needs_of(shape, context, requests);
        const int64_t least = least_memory(needs), chat = std::min(4096, context);
        for (int64_t budget = least; budget < 64 * least; budget += budget / 7 + 1) {
          SCOPED_TRACE(str(shape.name, " ", context, " ", requests, " ", budget));
          const MemoryPlan plan = plan_memory(budget, needs);
          const int64_t working = shape.state_bytes > 0 ? requests : 0, cached = plan.num_states - working;
          ASSERT_GE(plan.num_pages * 64, context);
          ASSERT_GE(cached, 0);
          ASSERT_EQ(plan.bytes, (plan.num_pages + 1) * needs.page_bytes +
                                    (working + cached + (shape.state_bytes > 0 ? 1 : 0)) * shape.state_bytes);
          ASSERT_LE(plan.bytes, budget);
          ASSERT_LT(budget - plan.bytes, std::max(needs.page_bytes, shape.state_bytes));
          const int64_t beyond_context = (plan.num_pages - context / 64) * needs.page_bytes;
          if (shape.state_bytes == 0 || beyond_context <= shape.state_bytes) continue;
          const double chats = plan.num_pages * 64.0 / static_cast<double>(chat);
          ASSERT_LE(static_cast<double>(cached), 1.2 * chats);
          ASSERT_GT(static_cast<double>(cached),
                    1.2 * chats - 2.2 -
                        1.2 * static_cast<double>(shape.state_bytes) / static_cast<double>(chat * shape.token_bytes));
        }
      }
    }
  }
}

TEST(MemoryPlan, WithoutCachedTextAllButTheWorkingStatesIsPages) {
  const CacheNeeds needs = needs_of(kHybrid, 8192, 4, CachesText::kNo);
  const MemoryPlan plan = plan_memory(kGB, needs);
  EXPECT_EQ(plan.num_states, 4);
  EXPECT_EQ(plan.num_pages, (kGB - 5 * kHybrid.state_bytes) / needs.page_bytes - 1);
}

TEST(MemoryPlan, AModelWithoutKAndVHasPagesForTheChatsOfItsStates) {
  const CacheNeeds needs = needs_of({"recurrent", 0, 1000}, 8192);
  const MemoryPlan plan = plan_memory(32000, needs);
  EXPECT_EQ(plan.num_states, 31);
  EXPECT_GE(plan.num_pages, 30 * 4096 / 64 * 5 / 6);
}

TEST(MemoryPlan, RefusesABudgetBelowOneContextAndItsStates) {
  for (const Shape& shape : kShapes) {
    const CacheNeeds needs = needs_of(shape, 8192, 2);
    const int64_t least = 129 * 64 * shape.token_bytes + (shape.state_bytes > 0 ? 3 * shape.state_bytes : 0);
    EXPECT_EQ(least_memory(needs), least);
    EXPECT_EQ(plan_memory(least, needs).num_pages, 128);
    const auto refused = testing_support::refusal_of([&] { plan_memory(least - 1, needs); });
    EXPECT_EQ(refused.code, ErrorCode::kOutOfMemory);
    EXPECT_EQ(
        refused.sentence,
        str("kv_cache_memory_bytes is ", least - 1, " bytes, expected ", least, " or more: a context of 8192 tokens",
            shape.state_bytes > 0 ? " and a recurrent state for each of 2 running requests" : ""));
  }
}

TEST(MemoryPlan, TheDefaultHoldsEightChatsOrHalfOfTheFreeMemory) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(shape.name);
    const CacheNeeds needs = needs_of(shape);
    const MemoryPlan plan = plan_memory(default_memory(needs, 1000 * kGB), needs);
    EXPECT_GE(plan.num_pages * 64, 8 * 4096);
    EXPECT_GE(plan.num_states, shape.state_bytes > 0 ? 1 + 8 : 0);
    EXPECT_EQ(default_memory(needs, 1000), least_memory(needs));
    const int64_t least = least_memory(needs);
    EXPECT_EQ(default_memory(needs, 2 * least + 2000), least + 1000);
    EXPECT_EQ(default_memory(needs_of(shape, 8192, 1, CachesText::kNo), 1000 * kGB), least);
  }
  const CacheNeeds one_context = needs_of(kHybrid, 262144);
  const MemoryPlan plan = plan_memory(default_memory(one_context, 1000 * kGB), one_context);
  EXPECT_EQ(plan.num_pages, 4096);
  EXPECT_EQ(plan.num_states, 1 + 10);
}

TEST(MemoryPlan, TheDefaultHoldsAChatOfEachRunningRequest) {
  for (const CachesText caches : {CachesText::kYes, CachesText::kNo}) {
    const CacheNeeds needs = needs_of(kHybrid, 8192, 64, caches);
    const MemoryPlan plan = plan_memory(default_memory(needs, 1000 * kGB), needs);
    EXPECT_GE(plan.num_pages * 64, 64 * 4096);
    EXPECT_GE(plan.num_states, caches == CachesText::kYes ? 64 + 64 : 64);
  }
}

}  // namespace
}  // namespace headrace
