// What is remembered of kernels, for one device and apart from others.
#include "headrace/ops/cuda/runtime/kernel_attributes.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

namespace headrace::cuda {
namespace {

TEST(KernelAttributes, AskForMoreSharedMemoryAloneAndOnEveryDevice) {
  const int kernel = 0, other = 0;
  std::vector<size_t> told;
  const auto allow = [&told](KernelAttributes& device, const int& of, size_t bytes) {
    device.allow_shared(&of, bytes, [&] { told.push_back(bytes); });
  };
  KernelAttributes first, second;
  allow(first, kernel, 100), allow(first, kernel, 100), allow(first, kernel, 60);
  EXPECT_EQ(told, (std::vector<size_t>{100}));
  allow(first, kernel, 101), allow(first, other, 7), allow(second, kernel, 100);
  EXPECT_EQ(told, (std::vector<size_t>{100, 101, 7, 100}));
}

TEST(KernelAttributes, KeepNothingOfARefusal) {
  const int kernel = 0;
  KernelAttributes notes;
  const auto refuse = [] { throw std::runtime_error("too much"); };
  EXPECT_THROW(notes.allow_shared(&kernel, 100, refuse), std::runtime_error);
  int told = 0;
  notes.allow_shared(&kernel, 100, [&told] { ++told; });
  EXPECT_EQ(told, 1);
}

TEST(KernelAttributes, AskHowManyBlocksFitOnceForEachKernel) {
  const int kernel = 0, other = 0;
  KernelAttributes first, second;
  EXPECT_EQ(first.resident_blocks(&kernel, [] { return 2; }), 2);
  EXPECT_EQ(first.resident_blocks(&kernel, [] { return 5; }), 2);
  EXPECT_EQ(first.resident_blocks(&other, [] { return 3; }), 3);
  EXPECT_EQ(second.resident_blocks(&kernel, [] { return 5; }), 5);
}

}  // namespace
}  // namespace headrace::cuda
