#include "headrace/batch/device_plans.h"

#include <gtest/gtest.h>

#include <set>

#include "headrace/base/device_runtime.h"
#include "support/host_memory.h"

namespace headrace {
namespace {

TEST(DevicePlans, IsMadeOnceAndAgainWhenTheBatchChanges) {
  DevicePlans plans(cpu_runtime());
  const DevicePlans::Key key{128, 64}, other{128, 32};
  const DevicePlans::Place first = plans.find(key, 100);
  EXPECT_EQ(first.state, DevicePlans::State::kNew);
  EXPECT_EQ(plans.find(key, 100).state, DevicePlans::State::kMade);
  EXPECT_EQ(plans.find(key, 100).memory, first.memory);
  const DevicePlans::Place second = plans.find(other, 100);
  EXPECT_EQ(second.state, DevicePlans::State::kNew);
  EXPECT_NE(second.memory, first.memory);
  plans.forget();
  EXPECT_EQ(plans.find(key, 100).state, DevicePlans::State::kNew);
  EXPECT_EQ(plans.find(key, 100).memory, first.memory);
}

TEST(DevicePlans, APlanThatNeedsMoreGetsAnotherPlace) {
  DevicePlans plans(cpu_runtime());
  const DevicePlans::Key key{128, 64};
  const DevicePlans::Place small = plans.find(key, 100), large = plans.find(key, 1000);
  EXPECT_EQ(large.state, DevicePlans::State::kNew);
  EXPECT_NE(large.memory, small.memory);
  EXPECT_EQ(plans.find(key, 1000).memory, large.memory);
  EXPECT_EQ(plans.find(key, 1000).state, DevicePlans::State::kMade);
}

// A graph was recorded with the small plan: it makes that plan anew where the large one has been.
TEST(DevicePlans, ThoseOfTheNextBatchLieInTheSamePlaces) {
  DevicePlans plans(cpu_runtime());
  const void* first = plans.find({128}, 100).memory;
  const void* second = plans.find({64}, 100).memory;
  for (const int64_t bytes : {int64_t{1000}, DevicePlans::kMostBytes}) {
    plans.forget();
    EXPECT_EQ(plans.find({32}, bytes).memory, first);
  }
  plans.forget();
  EXPECT_EQ(plans.find({128}, 100).memory, first);
  EXPECT_EQ(plans.find({64}, 100).memory, second);
}

TEST(DevicePlans, KeepsTheKeysThatAKernelWouldBeAnotherOneFor) {
  DevicePlans plans(cpu_runtime());
  EXPECT_TRUE(plans.shorter_keys().empty());
  for (const int32_t keys : {640, 0, 4096, 640}) plans.note_shorter(keys);
  EXPECT_EQ(plans.shorter_keys(), (std::set<int32_t>{640, 4096}));
  plans.forget();
  EXPECT_TRUE(plans.shorter_keys().empty());
}

TEST(DevicePlans, W30_BatchesOfAnySizeTakeNoMoreMemory) {
  testing_support::CountedMemory runtime;
  DevicePlans plans(runtime);
  EXPECT_EQ(runtime.allocated, DevicePlans::kBytes);
  for (int64_t bytes = 1; bytes <= DevicePlans::kMostBytes; bytes *= 2) {
    plans.forget();
    for (const int32_t key : {1, 2, 3, 4}) EXPECT_NE(plans.find({key}, bytes).memory, nullptr) << bytes;
  }
  EXPECT_EQ(plans.find({5}, 1).memory, nullptr) << "all is taken";
  EXPECT_EQ(plans.find({4}, 1).state, DevicePlans::State::kMade);
  plans.forget();
  EXPECT_EQ(plans.find({1}, DevicePlans::kMostBytes + 1).memory, nullptr);
  EXPECT_NE(plans.find({1}, DevicePlans::kMostBytes).memory, nullptr);
  EXPECT_EQ(runtime.allocated, DevicePlans::kBytes);
}

}  // namespace
}  // namespace headrace
