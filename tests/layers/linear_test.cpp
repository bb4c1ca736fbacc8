// The choice between our product and the matrix library's must not be seen in the results.
#include "headrace/layers/linear.h"

#include <gtest/gtest.h>

#include "headrace/layers/onednn_matmul.h"
#include "headrace/ops/cpu/dispatch.h"
#include "headrace/ops/reference/reference_ops.h"
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

// Shapes of one tile and of several, with last ones that are smaller, and rows of y that lie apart.
TEST(Linear, TheMatrixLibraryHasTheSameBitsWithAnyNumberOfThreads) {
  Random random(13);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const auto& [rows, columns] : {std::pair{16, 33}, {77, 600}, {130, 1040}, {520, 40}, {515, 1100}}) {
      const Tensor x = random_tensor(random, dtype, {rows, 1100}),
                   w = random_tensor(random, dtype, {columns, 1100}, 0.2);
      const Tensor bias = random_tensor(random, dtype, {columns}), alone(dtype, {rows, columns + 8});
      const LinearArgs args{.x = x, .weight = w, .bias = bias, .y = alone.view().narrow(1, 3, 3 + columns)};
      if (!onednn_supports(args)) continue;
      const Tensor want(dtype, {rows, columns}), many(dtype, {rows, columns});
      if (rows * columns < 50000) {  // the oracle is slow
        onednn_matmul(args, {.threads = 1});
        reference::linear({.x = x, .weight = w, .bias = bias, .y = want}, {});
        EXPECT_TRUE(all_close(args.y, want, dense_tolerance(dtype))) << name_of(dtype) << " " << rows << " " << columns;
      }
      for (const int threads : {2, 5}) {
        onednn_matmul({.x = x, .weight = w, .bias = bias, .y = many}, {.threads = threads});
        onednn_matmul({.x = x, .weight = w, .bias = bias, .y = want}, {.threads = 1});
        EXPECT_TRUE(bit_equal(many, want)) << name_of(dtype) << " " << rows << " " << columns << " " << threads;
      }
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
