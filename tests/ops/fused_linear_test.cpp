// fused_linear against its parts on the oracle, and the products of a device in the sizes of models.
#include "headrace/ops/fused_linear.h"

#include <array>
#include <cmath>
#include <utility>

#include "ops/kernel_sets.h"
#include "support/all_close.h"
#include "support/random.h"

namespace headrace::testing_support {
namespace {

constexpr Tolerance kRounded{.abs = 4e-3, .rel = 8e-3};    // two roundings to bfloat16 of values of size about 1
constexpr Tolerance kParts{.abs = 1.6e-2, .rel = 1.6e-2};  // where parts round what they hand on, of size up to 4

class FusedLinear : public KernelSetTest {
 protected:
  void SetUp() override {
    KernelSetTest::SetUp();
    if (!IsSkipped() && ops().fused_linear == not_fused<const FusedLinearArgs&>)
      GTEST_SKIP() << "this set has no fused_linear";
  }
  Tensor values(DType type, const Shape& shape, double size = 1) { return random_tensor(random_, type, shape, size); }
  Random random_{8};
};

Tensor normed(const TensorView& x, const TensorView& weight) {
  Tensor out(x.dtype(), x.shape());
  reference::rms_norm({.x = x, .weight = weight, .weight_form = WeightForm::kPlusOne, .out = out}, {});
  return out;
}

// rows: of the fused kernel with 8 and 16 rows, and of the parts; in: with a part that ends early.
constexpr std::array kRows = {1, 2, 3, 8, 9, 16, 17, 150};
constexpr Determinism kBoth[] = {Determinism::kFast, Determinism::kStrict};

TEST_P(FusedLinear, SeveralProductsOfOneNormMatchTheOracle) {
  for (const int64_t rows : kRows) {
    const DType type = rows == 3 ? DType::kF32 : DType::kBF16;
    const Tensor x = values(type, {rows, 264}), norm = values(type, {264}, 0.1);
    const Tensor w0 = values(type, {70, 264}, 0.06), w1 = values(type, {16, 264}, 0.06), bias = values(type, {16});
    const Tensor y0(type, {rows, 70}), y1(type, {rows, 16}), want0(type, {rows, 70}), want1(type, {rows, 16});
    const Tensor n = normed(x, norm);
    reference::linear({.x = n, .weight = w0, .y = want0}, {});
    reference::linear({.x = n, .weight = w1, .bias = bias, .y = want1}, {});
    for (const Determinism determinism : kBoth) {
      poison(y0), poison(y1);
      FusedLinearArgs args{.x = x, .norm_weight = norm, .norm_form = WeightForm::kPlusOne, .num_products = 2};
      args.products[0] = {.weight = w0, .bias = {}, .y = y0};
      args.products[1] = {.weight = w1, .bias = bias, .y = y1};
      ops().fused_linear(args, {.determinism = determinism});
      EXPECT_TRUE(all_close(y0, want0, kRounded)) << rows;
      EXPECT_TRUE(all_close(y1, want1, kRounded)) << rows;
    }
  }
}

TEST_P(FusedLinear, SiluMulOfTwoProductsMatchesTheOracle) {
  for (const int64_t rows : kRows) {
    const Tensor x = values(DType::kBF16, {rows, 1160});
    const Tensor gate = values(DType::kBF16, {90, 1160}, 0.03), up = values(DType::kBF16, {90, 1160}, 0.03);
    const Tensor y(DType::kBF16, {rows, 90}), want(DType::kBF16, {rows, 90});
    const Tensor g(DType::kF32, {rows, 90}), u(DType::kF32, {rows, 90});
    reference::linear({.x = x, .weight = gate, .y = g}, {});
    reference::linear({.x = x, .weight = up, .y = u}, {});
    reference::pointwise({.kind = PointwiseKind::kSiluMul, .x = g, .y = u, .out = want}, {});
    for (const Determinism determinism : kBoth) {
      poison(y);
      FusedLinearArgs args{.x = x, .num_products = 2, .combine = FusedLinearArgs::Combine::kSiluMul};
      args.products[0] = {.weight = gate, .bias = {}, .y = y};
      args.products[1] = {.weight = up, .bias = {}, .y = {}};
      ops().fused_linear(args, {.determinism = determinism});
      EXPECT_TRUE(all_close(y, want, kParts)) << rows;
    }
  }
}

TEST_P(FusedLinear, TheResidualMayBeTheResult) {
  for (const int64_t rows : kRows) {
    const Tensor x = values(DType::kBF16, {rows, 96}), w = values(DType::kBF16, {24, 96}, 0.1);
    const Tensor residual = values(DType::kBF16, {rows, 24});
    const Tensor product(DType::kF32, {rows, 24}), want(DType::kBF16, {rows, 24});
    reference::linear({.x = x, .weight = w, .y = product}, {});
    reference::pointwise({.kind = PointwiseKind::kAdd, .x = residual, .y = product, .out = want}, {});
    for (const Determinism determinism : kBoth) {
      const Tensor y = copy_of(residual);
      FusedLinearArgs args{.x = x, .residual = y};
      args.products[0] = {.weight = w, .bias = {}, .y = y};
      ops().fused_linear(args, {.determinism = determinism});
      EXPECT_TRUE(all_close(y, want, kParts)) << rows;
    }
  }
}

// One row and two have a kernel of their own; inner sizes for each number of passes, with a part that ends early.
TEST_P(FusedLinear, FewRowsOfAnyLengthMatchTheOracle) {
  for (const int64_t in : {72, 1024, 1160, 2048, 2120, 3584, 4096, 4104}) {
    for (const auto& [rows, type] :
         {std::pair{1, DType::kBF16}, {1, DType::kF16}, {2, DType::kF16}, {7, DType::kBF16}}) {
      SCOPED_TRACE(testing::Message() << rows << " rows of " << in << " " << name_of(type));
      const double size = 1 / std::sqrt(static_cast<double>(in));
      const Tensor x = values(type, {rows, in}), norm = values(DType::kF32, {in}, 0.1), n = normed(x, norm);
      const Tensor w0 = values(type, {76, in}, size), w1 = values(type, {76, in}, size), bias = values(type, {76});
      const Shape shape{rows, 76};
      const Tensor y(type, shape), want(type, shape), p0(DType::kF32, shape), p1(DType::kF32, shape);
      const Tensor residual = values(type, shape);
      const auto run = [&](FusedLinearArgs args) {
        poison(y);
        ops().fused_linear(args, {});
        EXPECT_TRUE(all_close(y, want, kParts));
      };
      reference::linear({.x = x, .weight = w0, .bias = bias, .y = want}, {});
      run({.x = x, .products = {{{w0, bias, y}}}});
      reference::linear({.x = n, .weight = w0, .y = p0}, {});
      reference::linear({.x = n, .weight = w1, .y = p1}, {});
      const FusedLinearArgs of_norm{.x = x, .norm_weight = norm, .norm_form = WeightForm::kPlusOne};
      FusedLinearArgs added = of_norm;
      added.products[0] = {w0, {}, y}, added.residual = residual;
      reference::pointwise({.kind = PointwiseKind::kAdd, .x = residual, .y = p0, .out = want}, {});
      run(added);
      FusedLinearArgs combined = of_norm;
      combined.products[0] = {w0, {}, y}, combined.products[1] = {w1, {}, {}}, combined.num_products = 2;
      combined.combine = FusedLinearArgs::Combine::kSiluMul;
      reference::pointwise({.kind = PointwiseKind::kSiluMul, .x = p0, .y = p1, .out = want}, {});
      run(combined);
    }
  }
}

// The kernels of few and of many rows add in one order; sizes as models have them, more than one pass and part.
TEST_P(FusedLinear, UnderStrictARowsBitsDoNotDependOnTheOtherRows) {
  const OpContext strict{.determinism = Determinism::kStrict};
  for (const int64_t in : {1024, 2048, 2120, 3584}) {
    const Tensor x = values(DType::kBF16, {200, in}), w = values(DType::kBF16, {264, in}, 0.02);
    const Tensor norm = values(DType::kBF16, {in}, 0.1), all(DType::kBF16, {200, 264});
    const Tensor up = copy_of(w);
    for (int64_t i = 0; i < in; ++i) set_element(up, 5 * in + i, 0);  // results of both signs of zero
    const auto run = [&](const TensorView& rows, const TensorView& y, FusedLinearArgs::Combine combine) {
      FusedLinearArgs args{.x = rows, .norm_weight = norm, .combine = combine};
      args.products[0] = {.weight = w, .bias = {}, .y = y};
      if (combine == FusedLinearArgs::Combine::kSiluMul) {
        args.num_products = 2;
        args.products[1] = {.weight = up, .bias = {}, .y = {}};
      }
      ops().fused_linear(args, strict);
    };
    for (const auto combine : {FusedLinearArgs::Combine::kNone, FusedLinearArgs::Combine::kSiluMul}) {
      run(x, all, combine);
      for (const auto& [begin, end] :
           {std::array{0, 1}, {77, 78}, {31, 33}, {5, 12}, {60, 68}, {130, 146}, {100, 200}}) {
        const Tensor part(DType::kBF16, {end - begin, 264});
        run(x.view().slice(begin, end), part, combine);
        EXPECT_TRUE(bit_equal(part, all.view().slice(begin, end))) << in << ": " << begin << " to " << end;
      }
    }
  }
}

TEST_P(FusedLinear, RefusesShapesThatDoNotGoTogether) {
  const Tensor x = values(DType::kBF16, {2, 16}), w = values(DType::kBF16, {8, 16}), y(DType::kBF16, {2, 8});
  FusedLinearArgs args{.x = x, .num_products = 2};
  args.products[0] = args.products[1] = {.weight = w, .bias = {}, .y = y};
  args.residual = y;  // of two products
  EXPECT_THROW(ops().fused_linear(args, {}), Error);
  args.residual = {};
  args.combine = FusedLinearArgs::Combine::kSiluMul;  // with a second result
  EXPECT_THROW(ops().fused_linear(args, {}), Error);
}

HR_INSTANTIATE_KERNEL_SETS(FusedLinear);

}  // namespace
}  // namespace headrace::testing_support
