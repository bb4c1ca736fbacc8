#include "headrace/core/tensor.h"
#include "headrace/core/device_runtime.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "support/refusal.h"

namespace headrace {
namespace {

TEST(TensorView, ReshapeSplitsTheLastDimensionOfStridedRows) {
  const Tensor fused = Tensor::zeros(DType::kF32, {3, 10});
  const TensorView part = fused.view().narrow(1, 2, 8);
  const TensorView heads = part.reshape({3, 2, 3});
  EXPECT_EQ(heads.strides(), (Shape{10, 3, 1}));
  EXPECT_EQ(heads.reshape({3, 6}).strides(), (Shape{10, 1}));
  EXPECT_THROW(part.reshape({18}), Error);
}

TEST(TensorView, ReshapeOfADenseTensorMergesAnything) {
  const Tensor dense = Tensor::zeros(DType::kF32, {2, 3, 4});
  EXPECT_EQ(dense.view().reshape({6, 4}).strides(), (Shape{4, 1}));
  EXPECT_EQ(dense.view().reshape({24}).shape(), (Shape{24}));
  EXPECT_THROW(dense.view().reshape({5, 5}), Error);
}

TEST(Tensor, RefusesShapesThatNoMemoryHas) {
  const auto refusal = [](const Shape& shape) {
    return testing_support::refusal_of([&] { const Tensor tensor(DType::kF32, shape); });
  };
  EXPECT_EQ(refusal({-1, 4}).sentence,
            "tensor: shape is [-1, 4], expected sizes of 0 or more and at most 2^63 - 1 bytes");
  EXPECT_EQ(refusal({int64_t{1} << 40, int64_t{1} << 40}).code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(refusal({-2, -2}).code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(refusal({0, 4}).sentence, "");
}

TEST(TensorView, AsNamesTheTensorWhoseTypeIsWrong) {
  const Tensor t = Tensor::zeros(DType::kF32, {2});
  try {
    t.view().as<BF16, 1>("q");
    FAIL() << "a float32 tensor was read as bfloat16";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "q: dtype is float32, expected bfloat16");
  }
}

int64_t resident_bytes() {
  int64_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

TEST(Tensor, ManyZerosTakeNoMemoryUntilTheyAreTouched) {
  constexpr int64_t kCount = int64_t{1} << 26;  // 256 MiB
  const int64_t before = resident_bytes();
  if (before == 0) GTEST_SKIP() << "/proc is not mounted";
  const Tensor zeros = Tensor::zeros(DType::kF32, {kCount});
  EXPECT_LT(resident_bytes() - before, 32 << 20);
  for (int64_t i = 0; i < kCount; i += 1000) ASSERT_EQ(zeros.data_as<float>()[i], 0) << i;
}

TEST(Tensor, ManyZerosAreZerosWhateverWasThere) {
  constexpr int64_t kCount = (int64_t{1} << 24) + 5000;  // 64 MiB and some
  const Tensor t(DType::kF32, {kCount});
  float* const begin = t.data_as<float>();
  std::fill(begin, begin + kCount, 1.0f);
  constexpr int64_t kFirst = 3, kLast = kCount - 7;  // neither at the begin of a page nor at an end
  cpu_runtime().fill_zero(begin + kFirst, (kLast - kFirst) * sizeof(float));
  EXPECT_TRUE(std::all_of(begin, begin + kFirst, [](float x) { return x == 1; }));
  EXPECT_TRUE(std::all_of(begin + kFirst, begin + kLast, [](float x) { return x == 0; }));
  EXPECT_TRUE(std::all_of(begin + kLast, begin + kCount, [](float x) { return x == 1; }));
}

TEST(Tensor, MoveLeavesNothingBehind) {
  Tensor a = Tensor::zeros(DType::kI32, {4});
  const Tensor b = std::move(a);
  EXPECT_FALSE(a);  // NOLINT(bugprone-use-after-move): the state after a move is what is tested
  EXPECT_EQ(b.numel(), 4);
}

}  // namespace
}  // namespace headrace
