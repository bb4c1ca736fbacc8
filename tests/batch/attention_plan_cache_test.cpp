#include "headrace/batch/attention_plan_cache.h"

#include <gtest/gtest.h>

#include "headrace/core/device_runtime.h"
#include "support/host_memory.h"

namespace headrace {
namespace {

TEST(AttentionPlanCache, IsMadeOnceAndAgainWhenTheBatchChanges) {
  AttentionPlanCache plans(cpu_runtime());
  const AttentionPlanCache::Key key{128, 64}, other{128, 32};
  const AttentionPlanCache::Place first = plans.find(key, 100);
  EXPECT_EQ(first.state, AttentionPlanCache::State::kNew);
  EXPECT_EQ(plans.find(key, 100).state, AttentionPlanCache::State::kMade);
  EXPECT_EQ(plans.find(key, 100).memory, first.memory);
  const AttentionPlanCache::Place second = plans.find(other, 100);
  EXPECT_EQ(second.state, AttentionPlanCache::State::kNew);
  EXPECT_NE(second.memory, first.memory);
  plans.forget();
  EXPECT_EQ(plans.find(key, 100).state, AttentionPlanCache::State::kNew);
  EXPECT_EQ(plans.find(key, 100).memory, first.memory);
}

TEST(AttentionPlanCache, APlanThatNeedsMoreGetsAnotherPlace) {
  AttentionPlanCache plans(cpu_runtime());
  const AttentionPlanCache::Key key{128, 64};
  const AttentionPlanCache::Place small = plans.find(key, 100), large = plans.find(key, 1000);
  EXPECT_EQ(large.state, AttentionPlanCache::State::kNew);
  EXPECT_NE(large.memory, small.memory);
  EXPECT_EQ(plans.find(key, 1000).memory, large.memory);
  EXPECT_EQ(plans.find(key, 1000).state, AttentionPlanCache::State::kMade);
}

// A graph was recorded with the small plan: it makes that plan anew where the large one has been.
TEST(AttentionPlanCache, ThoseOfTheNextBatchLieInTheSamePlaces) {
  AttentionPlanCache plans(cpu_runtime());
  const void* first = plans.find({128}, 100).memory;
  const void* second = plans.find({64}, 100).memory;
  for (const int64_t bytes : {int64_t{1000}, AttentionPlanCache::kMostBytes}) {
    plans.forget();
    EXPECT_EQ(plans.find({32}, bytes).memory, first);
  }
  plans.forget();
  EXPECT_EQ(plans.find({128}, 100).memory, first);
  EXPECT_EQ(plans.find({64}, 100).memory, second);
}

TEST(AttentionPlanCache, W30_BatchesOfAnySizeTakeNoMoreMemory) {
  testing_support::CountedMemory runtime;
  AttentionPlanCache plans(runtime);
  EXPECT_EQ(runtime.allocated, AttentionPlanCache::kBytes);
  for (int64_t bytes = 1; bytes <= AttentionPlanCache::kMostBytes; bytes *= 2) {
    plans.forget();
    for (const int32_t key : {1, 2, 3, 4}) EXPECT_NE(plans.find({key}, bytes).memory, nullptr) << bytes;
  }
  EXPECT_EQ(plans.find({5}, 1).memory, nullptr) << "all is taken";
  EXPECT_EQ(plans.find({4}, 1).state, AttentionPlanCache::State::kMade);
  plans.forget();
  EXPECT_EQ(plans.find({1}, AttentionPlanCache::kMostBytes + 1).memory, nullptr);
  EXPECT_NE(plans.find({1}, AttentionPlanCache::kMostBytes).memory, nullptr);
  EXPECT_EQ(runtime.allocated, AttentionPlanCache::kBytes);
}

}  // namespace
}  // namespace headrace
