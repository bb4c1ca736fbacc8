#include "headrace/batch/device_plans.h"
#include "headrace/base/device_runtime.h"

#include <gtest/gtest.h>

#include <set>

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

// A graph that was recorded with the small plan still writes to its place.
TEST(DevicePlans, APlanThatNeedsMoreGetsAnotherPlace) {
  DevicePlans plans(cpu_runtime());
  const DevicePlans::Key key{128, 64};
  const DevicePlans::Place small = plans.find(key, 100);
  plans.forget();
  const DevicePlans::Place large = plans.find(key, 1000);
  EXPECT_EQ(large.state, DevicePlans::State::kNew);
  EXPECT_NE(large.memory, small.memory);
  plans.forget();
  EXPECT_EQ(plans.find(key, 100).memory, small.memory);
}

TEST(DevicePlans, KeepsTheKeysThatAKernelWouldBeAnotherOneFor) {
  DevicePlans plans(cpu_runtime());
  EXPECT_TRUE(plans.shorter_keys().empty());
  for (const int32_t keys : {640, 0, 4096, 640}) plans.note_shorter(keys);
  EXPECT_EQ(plans.shorter_keys(), (std::set<int32_t>{640, 4096}));
  plans.forget();
  EXPECT_TRUE(plans.shorter_keys().empty());
}

TEST(DevicePlans, OfAGrowingBatchAFewPlacesAreEnough) {
  DevicePlans plans(cpu_runtime());
  std::set<void*> places;
  for (int64_t bytes = 1; bytes <= 1000; ++bytes) {
    places.insert(plans.find({128}, bytes).memory);
    plans.forget();
  }
  EXPECT_LE(places.size(), 11u);
}

}  // namespace
}  // namespace headrace
