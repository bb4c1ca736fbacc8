// Opening devices, with failing_side_library beside this program: its GPU is the CPU's memory.
#include "headrace/ops/device_registry.h"

#include <gtest/gtest.h>

#include <future>
#include <set>
#include <vector>

#include "headrace/core/device_runtime.h"
#include "support/refusal.h"

namespace headrace {
namespace {

TEST(DeviceRegistry, EachCallOpensARuntimeOfItsOwn) {
  const std::shared_ptr<DeviceRuntime> first = open_device("cuda"), second = open_device("cuda:0"),
                                       third = open_device("auto");
  EXPECT_EQ((std::set{first.get(), second.get(), third.get()}.size()), 3U);
  for (const auto& one : {first, second, third}) EXPECT_EQ(to_string(one->device()), "cuda:0");
}

TEST(DeviceRegistry, ARuntimeEndsWithItsLastPointer) {
  std::shared_ptr<DeviceRuntime> one = open_device("cuda");
  const std::weak_ptr<DeviceRuntime> watched = one;
  EXPECT_EQ(one.use_count(), 1);
  one.reset();
  EXPECT_TRUE(watched.expired());
}

TEST(DeviceRegistry, TheCpuHasOneRuntimeForAll) {
  EXPECT_EQ(open_device("cpu").get(), &cpu_runtime());
  EXPECT_EQ(open_device("cpu").get(), &cpu_runtime());
}

TEST(DeviceRegistry, ThreadsOpenUseAndCloseAtOnce) {
  std::vector<std::future<float>> sums;
  for (int thread = 0; thread < 8; ++thread) {
    sums.push_back(std::async(std::launch::async, [thread] {
      float sum = 0;
      for (int i = 0; i < 50; ++i) {
        const std::shared_ptr<DeviceRuntime> device = open_device("cuda");
        const float value = static_cast<float>(thread);
        const Tensor there = Tensor::zeros(DType::kF32, {1}, *device);
        device->copy_to_device(there.data(), &value, sizeof(value));
        float back = -1;
        device->copy_to_host(&back, there.data(), sizeof(back));
        sum += back;
      }
      return sum;
    }));
  }
  for (int thread = 0; thread < 8; ++thread) {
    EXPECT_EQ(sums[static_cast<size_t>(thread)].get(), 50.0f * static_cast<float>(thread));
  }
}

TEST(DeviceRegistry, AnUnknownNameIsRefused) {
  EXPECT_EQ(testing_support::refusal_of([] { open_device("gpu"); }).code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace headrace
