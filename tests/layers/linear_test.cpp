// The choice between our product and the matrix library's must not be seen in the results.
#include "headrace/layers/linear.h"

#include <gtest/gtest.h>

#include "headrace/kernels/cpu/dispatch.h"
#include "headrace/kernels/reference/reference_ops.h"
#include "headrace/layers/onednn_matmul.h"
#include "support/all_close.h"
#include "support/random.h"
#include "support/tolerances.h"

namespace headrace::testing_support {
namespace {

LayerContext context_of(DType dtype, Determinism determinism) {
  return {.ops = &cpu::select_kernel_set(), .op = {.threads = 2, .determinism = determinism}, .dtype = dtype};
}

TEST(Linear, AgreesWithTheOracleForFewAndManyRowsWithAndWithoutBias) {
  Random random(11);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t rows : {1, 15, 16, 77}) {
      const Tensor x = random_tensor(random, dtype, {rows, 80}), w = random_tensor(random, dtype, {33, 80}, 0.2);
      const Tensor stored_bias = random_tensor(random, dtype, {33});
      for (const TensorView& bias : {TensorView(), stored_bias.view()}) {
        const Tensor want(dtype, {rows, 33});
        reference::linear({.x = x, .weight = w, .bias = bias, .y = want}, {});
        const Tensor got = Linear(w, bias)(context_of(dtype, Determinism::kFast), x);
        EXPECT_TRUE(all_close(got, want, dense_tolerance(dtype))) << name_of(dtype) << " rows " << rows;
      }
    }
  }
}

// Several rows of weights at a time, of which the last are fewer, strided rows, and every dtype of bias and results.
TEST(Linear, BFloat16InFloat32AgreesWithTheOracle) {
  Random random(13);
  const DType type = DType::kBF16;
  const Tensor x = random_tensor(random, type, {19, 90}), w = random_tensor(random, type, {520, 90}, 0.2);
  const TensorView rows = x.view().narrow(1, 5, 85), weight = w.view().narrow(1, 3, 83);
  const Tensor wide(DType::kF32, {19, 520});
  if (!onednn_supports({.x = wide, .weight = wide, .y = wide})) GTEST_SKIP() << "without oneDNN";
  const Tensor narrow_bias = random_tensor(random, type, {520}), wide_bias = random_tensor(random, DType::kF32, {520});
  for (const TensorView& bias : {TensorView(), narrow_bias.view(), wide_bias.view()}) {
    for (const DType of_results : {type, DType::kF32}) {
      const Tensor want(of_results, {19, 520}), all(of_results, {19, 530});
      const TensorView got = all.view().narrow(1, 4, 524);
      reference::linear({.x = rows, .weight = weight, .bias = bias, .y = want}, {});
      onednn_matmul_widened({.x = rows, .weight = weight, .bias = bias, .y = got}, {.threads = 2});
      EXPECT_TRUE(all_close(copy_of(got), want, dense_tolerance(of_results))) << name_of(of_results);
    }
  }
}

TEST(Linear, StrictRowsHaveTheSameBitsInAnyCompany) {
  Random random(12);
  const LayerContext context = context_of(DType::kBF16, Determinism::kStrict);
  const Tensor x = random_tensor(random, DType::kBF16, {40, 80}), w = random_tensor(random, DType::kBF16, {33, 80});
  const Tensor all = Linear(w, {})(context, x);
  for (const int64_t row : {0, 17, 39}) {
    EXPECT_TRUE(bit_equal(Linear(w, {})(context, x.view().slice(row, row + 1)), all.view().slice(row, row + 1)));
  }
}

TEST(Linear, TheMatrixLibraryTakesBiasesOfTheWeightsDtypeAlone) {
  const Tensor x(DType::kF32, {16, 8}), w(DType::kF32, {4, 8}), y(DType::kF32, {16, 4});
  const Tensor same(DType::kF32, {4}), other(DType::kF16, {4});
  EXPECT_EQ(onednn_supports({.x = x, .weight = w, .bias = same, .y = y}),
            onednn_supports({.x = x, .weight = w, .y = y}));
  EXPECT_FALSE(onednn_supports({.x = x, .weight = w, .bias = other, .y = y}));
}

}  // namespace
}  // namespace headrace::testing_support
