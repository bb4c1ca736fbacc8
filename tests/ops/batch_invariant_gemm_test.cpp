// Under kStrict a row's products have the same bits among any number of rows, whichever kernels a device has for few
// rows and for many. Sizes: rows at the edges of every kernel's tiles, and outs and ins that end within one.
#include <array>
#include <cstring>
#include <vector>

#include "headrace/ops/fused_linear.h"
#include "ops/kernel_sets.h"
#include "support/all_close.h"
#include "support/random.h"

namespace headrace::testing_support {
namespace {

constexpr int64_t kMostRows = 300;
constexpr OpContext kStrict{.determinism = Determinism::kStrict};

enum class Extra : uint8_t { kNone, kBias, kBiasAndResidual, kSiluMul };

struct Case {
  const char* name;
  DType type, y_type;
  int64_t out, in;
  Extra extra;
};

// Ends within the last part of the sum's second pass, within the first pass, and in the middle of 64 elements.
constexpr std::array kCases = {
    Case{"bf16_bias_and_residual", DType::kBF16, DType::kBF16, 200, 1160, Extra::kBiasAndResidual},
    Case{"f16_bias_and_residual", DType::kF16, DType::kF16, 392, 2040, Extra::kBiasAndResidual},
    Case{"bf16_of_float32_results", DType::kBF16, DType::kF32, 198, 1024, Extra::kBias},
    Case{"f16_of_float32_results", DType::kF16, DType::kF32, 70, 104, Extra::kNone},
    Case{"bf16_odd", DType::kBF16, DType::kBF16, 131, 328, Extra::kBiasAndResidual},
    Case{"bf16_silu_mul", DType::kBF16, DType::kBF16, 200, 1160, Extra::kSiluMul},
    Case{"f16_silu_mul", DType::kF16, DType::kF16, 104, 640, Extra::kSiluMul},
};

class StrictProducts : public KernelSetTest {
 protected:
  void SetUp() override {
    KernelSetTest::SetUp();
    if (!IsSkipped() && ops().fused_linear == not_fused<const FusedLinearArgs&>)
      GTEST_SKIP() << "this set has no fused_linear";
  }
};

struct Problem {
  Problem(const Case& c, Random& random)
      : of(c),
        x(random_tensor(random, c.type, {kMostRows, c.in})),
        weight(random_tensor(random, c.type, {c.out, c.in}, 0.03)),
        up(random_tensor(random, c.type, {c.out, c.in}, 0.03)),
        bias(random_tensor(random, c.type, {c.out})),
        residual(random_tensor(random, c.type, {kMostRows, c.out})) {}

  // Rows [begin, end) by themselves.
  Tensor run(const OpSet& ops, int64_t begin, int64_t end) const {
    Tensor y(of.y_type, {end - begin, of.out});
    poison(y);
    FusedLinearArgs args{.x = x.view().slice(begin, end)};
    args.products[0] = {.weight = weight, .bias = has_bias() ? bias.view() : TensorView(), .y = y};
    if (of.extra == Extra::kBiasAndResidual) args.residual = residual.view().slice(begin, end);
    if (of.extra == Extra::kSiluMul) {
      args.num_products = 2, args.combine = FusedLinearArgs::Combine::kSiluMul;
      args.products[1] = {.weight = up, .bias = {}, .y = {}};
    }
    ops.fused_linear(args, kStrict);
    return y;
  }

  // Rows [begin, end), sums in double.
  Tensor oracle(int64_t begin, int64_t end) const {
    Tensor product(DType::kF32, {end - begin, of.out}), want(of.y_type, {end - begin, of.out});
    const TensorView rows = x.view().slice(begin, end), added = residual.view().slice(begin, end);
    reference::linear({.x = rows, .weight = weight, .bias = has_bias() ? bias.view() : TensorView(), .y = product}, {});
    if (of.extra == Extra::kBiasAndResidual) {
      reference::pointwise({.kind = PointwiseKind::kAdd, .x = added, .y = product, .out = want}, {});
      return want;
    }
    if (of.extra != Extra::kSiluMul) return product;
    const Tensor second(DType::kF32, {end - begin, of.out});
    reference::linear({.x = rows, .weight = up, .y = second}, {});
    reference::pointwise({.kind = PointwiseKind::kSiluMul, .x = product, .y = second, .out = want}, {});
    return want;
  }
  bool has_bias() const { return of.extra == Extra::kBias || of.extra == Extra::kBiasAndResidual; }

  Case of;
  Tensor x, weight, up, bias, residual;
};

TEST_P(StrictProducts, OfManyRowsMatchTheOracle) {
  Random random(21);
  for (const Case& c : kCases) {
    const Problem problem(c, random);
    const Tolerance rounded = c.y_type == DType::kF32    ? Tolerance{.abs = 1e-4, .rel = 1e-4}
                              : c.y_type == DType::kBF16 ? Tolerance{.abs = 4e-3, .rel = 8e-3}
                                                         : Tolerance{.abs = 1e-3, .rel = 1e-3};
    const Tensor all = problem.run(ops(), 0, kMostRows);
    for (const int64_t begin : {int64_t{60}, kMostRows - 4}) {  // the other test compares all rows with each other
      EXPECT_TRUE(all_close(all.view().slice(begin, begin + 4), problem.oracle(begin, begin + 4), rounded)) << c.name;
    }
  }
}

TEST_P(StrictProducts, HaveTheBitsOfTheRowAloneAmongAnyNumberOfRows) {
  std::vector<int64_t> counts = {63, 64, 65, 127, 128, 129, 191, 192, 193, kMostRows};
  for (int64_t rows = 1; rows <= 20; ++rows) counts.push_back(rows);
  Random random(22);
  for (const Case& c : kCases) {
    const Problem problem(c, random);
    const Tensor alone(c.y_type, {kMostRows, c.out});
    for (int64_t row = 0; row < kMostRows; ++row) {
      const Tensor one = problem.run(ops(), row, row + 1);
      std::memcpy(static_cast<char*>(alone.data()) + row * one.bytes(), one.data(), static_cast<size_t>(one.bytes()));
    }
    for (const int64_t rows : counts) {
      const int64_t begin = kMostRows - rows;
      EXPECT_TRUE(bit_equal(problem.run(ops(), begin, kMostRows), alone.view().slice(begin, kMostRows)))
          << c.name << ", " << rows << " rows";
    }
  }
}

// Rows of a wider tensor: neither copies nor results may touch what lies between them.
TEST_P(StrictProducts, OfStridedRowsLeaveTheRestAlone) {
  Random random(23);
  for (const int64_t rows : {1, 2, 3, 150}) {
    SCOPED_TRACE(testing::Message() << rows << " rows");
    const Tensor wide = random_tensor(random, DType::kBF16, {rows, 256}),
                 w = random_tensor(random, DType::kBF16, {64, 136});
    const Tensor added = random_tensor(random, DType::kBF16, {rows, 128});
    const Tensor to = random_tensor(random, DType::kBF16, {rows, 192}), before = copy_of(to),
                 dense(DType::kBF16, {rows, 64});
    FusedLinearArgs args{.x = wide.view().narrow(1, 16, 152), .residual = added.view().narrow(1, 32, 96)};
    args.products[0] = {.weight = w, .bias = {}, .y = dense};
    ops().fused_linear(args, kStrict);
    args.products[0].y = to.view().narrow(1, 72, 136);
    ops().fused_linear(args, kStrict);
    EXPECT_TRUE(bit_equal(copy_of(to.view().narrow(1, 72, 136)), dense));
    EXPECT_TRUE(bit_equal(copy_of(to.view().narrow(1, 0, 72)), copy_of(before.view().narrow(1, 0, 72))));
    EXPECT_TRUE(bit_equal(copy_of(to.view().narrow(1, 136, 192)), copy_of(before.view().narrow(1, 136, 192))));
  }
}

HR_INSTANTIATE_KERNEL_SETS(StrictProducts);

}  // namespace
}  // namespace headrace::testing_support
