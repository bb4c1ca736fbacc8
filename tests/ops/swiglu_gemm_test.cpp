// silu(gate) * up of many rows in fast mode: how it is cut into tiles, and that nobody can tell how.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>

#include "headrace/ops/cuda/gemm/sm90/swiglu_gemm_plan.h"
#include "headrace/ops/reference/reference_ops.h"
#include "support/all_close.h"
#include "support/device_mirror.h"
#include "support/random.h"

namespace headrace::testing_support {
namespace {

constexpr int kSms = 132;  // of an H100 or H200
constexpr std::array<int64_t, 10> kRows = {100, 150, 280, 330, 415, 500, 640, 704, 800, 1030};

using Kernel = cuda::SwigluGemmPlan::Kernel;

// The shapes that were measured.
TEST(SwigluGemmPlan, TakesTheTileWhoseRoundsAreFullest) {
  for (const auto& [rows, width] : {std::array{288, 96}, {352, 128}, {512, 176}, {704, 144}, {1024, 128}}) {
    const cuda::SwigluGemmPlan plan = cuda::plan_swiglu_gemm(rows, 9728, 2560, kSms);
    EXPECT_EQ(plan.kernel, Kernel::kWide) << rows;
    EXPECT_EQ(plan.width, width) << rows;
  }
  EXPECT_EQ(cuda::plan_swiglu_gemm(128, 9728, 2560, kSms).kernel,
            Kernel::kOrdered);  // one round, where others take two
  EXPECT_EQ(cuda::plan_swiglu_gemm(16384, 3584, 1024, kSms).width, 176);
}

TEST(SwigluGemmPlan, LeavesFewRowsAndEmptyRoundsToTheLibrary) {
  EXPECT_EQ(cuda::plan_swiglu_gemm(63, 9728, 2560, kSms).kernel, Kernel::kParts);
  EXPECT_EQ(cuda::plan_swiglu_gemm(192, 9728, 2560, kSms).kernel, Kernel::kParts);  // 152 or 204 tiles for 132
  EXPECT_EQ(cuda::plan_swiglu_gemm(704, 9728, 2560, 0).kernel, Kernel::kParts);
}

TEST(SwigluGemmPlan, WidthsAreThoseThatAreBuilt) {
  for (int64_t rows = 1; rows < 3000; ++rows) {
    for (const int64_t out : {104, 3584, 9728, 28672}) {
      const cuda::SwigluGemmPlan plan = cuda::plan_swiglu_gemm(rows, out, 4096, kSms);
      const auto& widths = cuda::SwigluGemmPlan::kWidths;
      const bool built = std::find(widths.begin(), widths.end(), plan.width) != widths.end();
      EXPECT_EQ(built, plan.kernel == Kernel::kWide) << rows << " rows, " << out;
    }
  }
}

struct Problem {
  Tensor x, gate, up;

  Problem(DType type, int64_t rows, int64_t out, int64_t in) {
    Random random(static_cast<uint64_t>(out));
    const auto make = [&](const Shape& shape, double size) { return random_tensor(random, type, shape, size); };
    x = make({rows, in}, 1), gate = make({out, in}, 0.1), up = make({out, in}, 0.1);
  }
  static FusedLinearArgs args(const TensorView& x, const Tensor& gate, const Tensor& up, const TensorView& y) {
    FusedLinearArgs a{.x = x, .num_products = 2, .combine = FusedLinearArgs::Combine::kSiluMul};
    a.products[0] = {.weight = gate, .bias = {}, .y = y};
    a.products[1] = {.weight = up, .bias = {}, .y = {}};
    return a;
  }
  // The first `rows` rows.
  Tensor run(const OpSet& ops, int64_t rows, Determinism determinism = Determinism::kFast) const {
    Tensor y(x.dtype(), {rows, gate.dim(0)});
    poison(y);
    ops.fused_linear(args(x.view().slice(0, rows), gate, up, y), {.determinism = determinism});
    return y;
  }
  Tensor oracle(int64_t begin, int64_t end) const {
    const Tensor g(DType::kF32, {end - begin, gate.dim(0)}), u(DType::kF32, g.shape());
    Tensor want(x.dtype(), g.shape());
    reference::linear({.x = x.view().slice(begin, end), .weight = gate, .y = g}, {});
    reference::linear({.x = x.view().slice(begin, end), .weight = up, .y = u}, {});
    reference::pointwise({.kind = PointwiseKind::kSiluMul, .x = g, .y = u, .out = want}, {});
    return want;
  }
};

class GateUp : public testing::Test {
 protected:
  void SetUp() override {
    if (mirrored_cuda_ops() == nullptr) GTEST_SKIP() << "no CUDA device";
  }
};

// Numbers of rows for which every width is chosen on 132 multiprocessors; ends within a tile's rows, within
// its channels, and within a stage of 64 elements; one to four stages a tile. The judge of all rows is strict mode,
// which the oracle judges elsewhere, and here with a few.
TEST_F(GateUp, OfAnyNumberOfRowsMatchesTheOracleAndRepeatsItsBits) {
  struct Case {
    DType type;
    int64_t out, in;
  };
  for (const Case& c : {Case{DType::kBF16, 9736, 136}, Case{DType::kF16, 9728, 200}, Case{DType::kBF16, 9608, 40}}) {
    const Problem problem(c.type, kRows.back(), c.out, c.in);
    const Tolerance rounded =
        c.type == DType::kBF16 ? Tolerance{.abs = 4e-3, .rel = 8e-3} : Tolerance{.abs = 1e-3, .rel = 1e-3};
    const Tensor want = problem.run(*mirrored_cuda_ops(), kRows.back(), Determinism::kStrict);
    EXPECT_TRUE(all_close(want.view().slice(141, 145), problem.oracle(141, 145), rounded));
    std::set<int> widths;
    for (const int64_t rows : kRows) {
      widths.insert(cuda::plan_swiglu_gemm(rows, c.out, c.in, kSms).width);
      const Tensor got = problem.run(*mirrored_cuda_ops(), rows);
      EXPECT_TRUE(all_close(got, want.view().slice(0, rows), rounded)) << rows << " rows";
      EXPECT_TRUE(bit_equal(problem.run(*mirrored_cuda_ops(), rows), got)) << rows << " rows";
    }
    EXPECT_EQ(widths.size(), cuda::SwigluGemmPlan::kWidths.size());
  }
}

// Rows of wider tensors: neither copies nor results may touch what lies between them.
TEST_F(GateUp, OfStridedRowsLeavesTheRestAlone) {
  const Problem problem(DType::kBF16, 300, 4104, 72);
  Random random(3);
  const Tensor wide = random_tensor(random, DType::kBF16, {300, 136});
  const Tensor to = random_tensor(random, DType::kBF16, {300, 4240}), before = copy_of(to);
  const TensorView x = wide.view().narrow(1, 64, 136), y = to.view().narrow(1, 72, 4176);
  const Tensor dense(DType::kBF16, {300, 4104}), dense_x = copy_of(x);
  const OpSet& ops = *mirrored_cuda_ops();
  ops.fused_linear(Problem::args(dense_x, problem.gate, problem.up, dense), {});
  ops.fused_linear(Problem::args(x, problem.gate, problem.up, y), {});
  EXPECT_TRUE(bit_equal(copy_of(y), dense));
  EXPECT_TRUE(bit_equal(copy_of(to.view().narrow(1, 0, 72)), copy_of(before.view().narrow(1, 0, 72))));
  EXPECT_TRUE(bit_equal(copy_of(to.view().narrow(1, 4176, 4240)), copy_of(before.view().narrow(1, 4176, 4240))));
}

}  // namespace
}  // namespace headrace::testing_support
