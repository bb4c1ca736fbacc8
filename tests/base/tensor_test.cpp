#include "headrace/base/tensor.h"

#include <gtest/gtest.h>

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

TEST(TensorView, AsNamesTheTensorWhoseTypeIsWrong) {
  const Tensor t = Tensor::zeros(DType::kF32, {2});
  try {
    t.view().as<BF16, 1>("q");
    FAIL() << "a float32 tensor was read as bfloat16";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "q: dtype is float32, expected bfloat16");
  }
}

TEST(Tensor, MoveLeavesNothingBehind) {
  Tensor a = Tensor::zeros(DType::kI32, {4});
  const Tensor b = std::move(a);
  EXPECT_FALSE(a);  // NOLINT(bugprone-use-after-move): the state after a move is what is tested
  EXPECT_EQ(b.numel(), 4);
}

}  // namespace
}  // namespace headrace
