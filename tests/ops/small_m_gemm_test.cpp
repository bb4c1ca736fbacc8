// Small-M GEMM: M from 1 to 64. How it is cut, and its results.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <tuple>

#include "headrace/ops/cuda/gemm/sm90/small_m_gemm_plan.h"
#include "headrace/ops/reference/reference_ops.h"
#include "support/all_close.h"
#include "support/device_mirror.h"
#include "support/random.h"

namespace headrace::testing_support {
namespace {

constexpr std::array<int64_t, 14> kRows = {1, 2, 3, 4, 6, 8, 9, 12, 16, 17, 31, 32, 33, 64};
constexpr int64_t kMost = 160;  // which other kernels have

constexpr int kSms = 132;  // of an H100 or H200
constexpr int kMostShared = 227 << 10;

using cuda::plan_small_m_gemm;
using cuda::SmallMGemmPlan;
using cuda::SmallMGemmShape;

enum class Also : uint8_t { kNothing, kResidual, kBias, kBoth };

struct Case {
  DType type, result;
  int64_t out, in;
  Also also = Also::kNothing;
  FusedLinearArgs::Combine combine = FusedLinearArgs::Combine::kNone;
  bool normed = false;
};

constexpr auto kSiluMul = FusedLinearArgs::Combine::kSiluMul;
constexpr auto kBF16 = DType::kBF16, kF16 = DType::kF16, kF32 = DType::kF32;

constexpr std::array kCases = {Case{kBF16, kBF16, 2560, 4096, Also::kResidual},
                               Case{kF16, kF16, 1096, 1160, Also::kBoth},
                               Case{kBF16, kF32, 6152, 264},
                               Case{kBF16, kBF16, 9728, 2560, Also::kNothing, kSiluMul, true},
                               Case{kBF16, kBF16, 2560, 9728, Also::kResidual},
                               Case{kF16, kF16, 1032, 520, Also::kNothing, kSiluMul},
                               Case{kF16, kF16, 1024, 3584, Also::kResidual},
                               Case{kBF16, kBF16, 1030, 136, Also::kBias, {}, true},
                               Case{kF16, kF32, 1024, 72},
                               Case{kF16, kF16, 3144, 1096, Also::kBoth},
                               Case{kBF16, kBF16, 1160, 968, Also::kNothing, kSiluMul},
                               Case{kBF16, kF32, 4104, 2184},
                               Case{kBF16, kBF16, 2104, 4104, Also::kBoth},
                               Case{kF16, kF16, 12360, 1032, Also::kBias},
                               Case{kBF16, kF32, 34008, 1032},
                               Case{kBF16, kF32, 52232, 264},
                               Case{kF16, kF16, 6144, 2560, Also::kBoth},
                               Case{kBF16, kBF16, 8224, 1024, Also::kResidual},
                               Case{kBF16, kBF16, 3584, 1024, Also::kNothing, kSiluMul},
                               Case{kF16, kF16, 3000, 968, Also::kNothing, kSiluMul},
                               Case{kBF16, kBF16, 6296, 968, Also::kNothing, kSiluMul},
                               Case{kBF16, kBF16, 2000, 1160, Also::kNothing, kSiluMul},
                               Case{kBF16, kBF16, 12680, 1088, Also::kBoth},
                               Case{kF16, kF32, 2000, 1088},
                               Case{kBF16, kBF16, 1024, 64},
                               Case{kF16, kF16, 8456, 1024},
                               Case{kBF16, kBF16, 2120, 1032, Also::kNothing, kSiluMul},
                               Case{kF16, kF16, 6728, 1032, Also::kNothing, kSiluMul},
                               Case{kBF16, kBF16, 3184, 1032, Also::kNothing, kSiluMul},
                               Case{kF16, kF16, 1208, 968, Also::kNothing, kSiluMul},
                               Case{kBF16, kBF16, 1448, 968, Also::kNothing, kSiluMul},
                               Case{kF16, kF16, 4232, 968, Also::kBias},
                               Case{kBF16, kBF16, 6344, 968, Also::kResidual},
                               Case{kBF16, kBF16, 4240, 968, Also::kNothing, kSiluMul},
                               Case{kBF16, kF32, 16904, 968},
                               Case{kF16, kF16, 6352, 968, Also::kNothing, kSiluMul},
                               Case{kF16, kF16, 13448, 968, Also::kResidual},
                               Case{kBF16, kBF16, 8464, 968, Also::kNothing, kSiluMul},
                               Case{kF16, kF16, 10568, 968, Also::kNothing, kSiluMul}};

// Shapes of 0.8B, 4B and 8B models, heads among them, and small ones.
constexpr std::array<std::array<int64_t, 2>, 12> kShapes = {{{6144, 2560},
                                                             {2560, 4096},
                                                             {9728, 2560},
                                                             {2560, 9728},
                                                             {8224, 1024},
                                                             {1024, 2048},
                                                             {3584, 1024},
                                                             {1024, 3584},
                                                             {151936, 2560},
                                                             {12288, 4096},
                                                             {1030, 136},
                                                             {1096, 1160}}};

TEST(SmallMGemmPlan, FitsIntoAMultiprocessor) {
  const auto check = [](int64_t rows, int64_t out, int64_t in, int num_sms) {
    for (const int kind : {0, 1, 2, 3}) {
      const SmallMGemmShape shape{.rows = rows, .out = out, .in = in, .combined = kind % 2 == 1, .strict = kind > 1};
      const SmallMGemmPlan plan = plan_small_m_gemm(shape, num_sms);
      if (plan.box_rows == 0) continue;
      SCOPED_TRACE(testing::Message() << rows << " rows, " << out << " x " << in << ", kind " << kind << ", "
                                      << num_sms);
      EXPECT_GE(rows, SmallMGemmPlan::kFewest);
      EXPECT_LE(rows, plan.box_rows);
      EXPECT_LE(plan.shared_bytes(), kMostShared);
      // No stage that is never filled, and three or more where there is work for them.
      const int64_t filled = cuda::stages_of_tile(shape, plan) * cuda::small_m_gemm_rounds(shape, plan);
      EXPECT_LE(plan.stages, filled);
      EXPECT_GE(plan.stages, std::min<int64_t>(filled, 3));
      EXPECT_LE(plan.clusters * plan.blocks, num_sms);
      EXPECT_GE(plan.clusters, 1);
      EXPECT_LE(plan.clusters, cuda::small_m_gemm_tiles(shape, plan));  // every cluster has work, and every block of it
      EXPECT_LT((plan.blocks - 1) * SmallMGemmPlan::kStageChunks, cuda::small_m_gemm_chunks(shape));
      EXPECT_EQ(plan.columns % (plan.weights * 8), 0);
      // Of x a product reads 64 rows, which have to lie in the stage.
      EXPECT_GE(plan.box_rows + SmallMGemmPlan::kStageChunks * plan.columns, 64);
      EXPECT_EQ(plan.order == SmallMGemmPlan::Order::kParts, shape.strict);
      if (shape.strict) {
        EXPECT_EQ(plan.parts() * plan.blocks, SmallMGemmPlan::kParts);
        EXPECT_EQ(plan.parts() % SmallMGemmPlan::group_of(plan.columns), 0);
      }
    }
  };
  for (const auto& [out, in] : kShapes) {
    for (int64_t rows = 1; rows < 200; ++rows) check(rows, out, in, kSms);
    for (const int num_sms : {1, 2, 3, 4, 7, 78, 114, 144}) {
      for (const int64_t rows : {2, 16, 17, 64}) check(rows, out, in, num_sms);
    }
  }
}

// As measured. {columns of a tile, clusters, blocks of each}
using Cut = std::tuple<int, int, int>;
Cut cut_of(const SmallMGemmShape& shape) {
  const SmallMGemmPlan plan = plan_small_m_gemm(shape, kSms);
  return {plan.columns, plan.clusters, plan.blocks};
}

TEST(SmallMGemmPlan, GivesEachMultiprocessorItsShare) {
  const auto cut = [](int64_t rows, int64_t out, int64_t in, bool combined = false) {
    return cut_of({.rows = rows, .out = out, .in = in, .combined = combined, .strict = false});
  };
  for (const int64_t rows : {16, 32, 64}) {
    EXPECT_EQ(cut(rows, 6144, 2560), rows == 16 ? Cut(64, 96, 1) : Cut(48, 128, 1));
    EXPECT_EQ(cut(rows, 2560, 4096), Cut(96, 27, 4));
    EXPECT_EQ(cut(rows, 9728, 2560, true), Cut(80, 122, 1));  // two tiles each
    EXPECT_EQ(cut(rows, 2560, 9728), Cut(96, 27, 4));
    EXPECT_EQ(cut(rows, 8224, 1024), Cut(64, 129, 1));
    EXPECT_EQ(cut(rows, 3584, 1024, true), Cut(64, 112, 1));
    EXPECT_EQ(cut(rows, 1024, 2048), Cut(64, 16, 4));
    EXPECT_EQ(cut(rows, 4096, 12288), Cut(64, 64, 2));
  }
  for (const int64_t rows : {16, 32}) EXPECT_EQ(cut(rows, 151936, 2560), Cut(64, 132, 1));
}

TEST(SmallMGemmPlan, StrictModeHasThePlanOfFastMode) {
  for (const int64_t rows : {16, 32, 64}) {
    for (const auto& [out, in] : kShapes) {
      for (const bool combined : {false, true}) {
        const SmallMGemmShape fast{.rows = rows, .out = out, .in = in, .combined = combined, .strict = false};
        SmallMGemmShape strict = fast;
        strict.strict = true;
        if (!cuda::small_m_gemm_pays(strict) || !cuda::small_m_gemm_pays(fast))
          continue;  // large heads are strict mode's alone
        EXPECT_EQ(cut_of(strict), cut_of(fast)) << rows << " rows, " << out << " x " << in;
      }
    }
  }
}

// A kernel of one type or the other, or what it does with several tiles. {strict, combined, columns of a tile, blocks,
// turned rows, several}
using Kind = std::tuple<bool, bool, int, int, int, bool>;
void add_kinds(int64_t out, int64_t in, bool combined, std::set<Kind>& kinds) {
  for (const int64_t rows : {16, 32, 64}) {
    for (const bool strict : {false, true}) {
      const SmallMGemmShape shape{.rows = rows, .out = out, .in = in, .combined = combined, .strict = strict};
      const SmallMGemmPlan plan = plan_small_m_gemm(shape, kSms);
      if (plan.box_rows == 0) continue;
      kinds.emplace(strict, combined, plan.columns, plan.blocks, plan.turned_rows(),
                    cuda::small_m_gemm_rounds(shape, plan) > 1);
    }
  }
}

TEST(SmallMGemmPlan, CasesStandForAllOfIt) {
  std::set<Kind> of_cases, all;
  for (const Case& c : kCases) add_kinds(c.out, c.in, c.combine == kSiluMul, of_cases);
  for (int64_t out = 1024; out < 20000; out += 8) {
    for (const int64_t in : {1024, 1032, 2184, 4096, 9728}) {
      for (const bool combined : {false, true}) add_kinds(out, in, combined, all);
    }
  }
  EXPECT_GE(all.size(), 50U);
  for (const auto& [strict, combined, columns, blocks, turned, several] : all) {
    EXPECT_TRUE(of_cases.contains({strict, combined, columns, blocks, turned, several}))
        << "strict " << strict << ", combined " << combined << ", " << columns << " columns, " << blocks
        << " blocks, turned " << turned << ", several " << several;
  }
}

TEST(SmallMGemmPlan, FewRowsAreTheColumnsOfTilesOf64) {
  const auto plan = [](int64_t rows, int64_t out, int64_t in, bool combined) {
    return plan_small_m_gemm({.rows = rows, .out = out, .in = in, .combined = combined, .strict = true}, kSms);
  };
  EXPECT_EQ(plan(2, 8224, 1024, false).turned_rows(), 16);
  EXPECT_EQ(plan(32, 8224, 1024, false).turned_rows(), 32);
  EXPECT_EQ(plan(33, 8224, 1024, false).turned_rows(), 0);
  EXPECT_EQ(plan(16, 1024, 2048, false).turned_rows(), 16);
  EXPECT_EQ(plan(16, 2560, 4096, false).turned_rows(), 0);  // tiles of 96
  EXPECT_EQ(plan(16, 3584, 1024, true).turned_rows(), 16);
  EXPECT_EQ(plan(17, 3584, 1024, true).turned_rows(), 0);
  // Of a block that is alone, warps that have rows of one of two weights hand their sums on.
  EXPECT_EQ(plan(16, 3584, 1024, true).blocks, 1);
  EXPECT_EQ(plan(16, 3584, 1024, true).join_bytes(), 4 * 2 * SmallMGemmPlan::kUnitBytes);
  EXPECT_EQ(plan(17, 3584, 1024, true).join_bytes(), 0);
  EXPECT_EQ(plan(16, 8224, 1024, false).join_bytes(), 0);
}

TEST(SmallMGemmPlan, ClustersFindRoomAtOnce) {
  EXPECT_EQ(cuda::clusters_at_once(132, 1), 132);
  EXPECT_EQ(cuda::clusters_at_once(132, 2), 66);
  EXPECT_EQ(cuda::clusters_at_once(132, 4), 30);
  EXPECT_EQ(cuda::clusters_at_once(2, 4), 1);
}

TEST(SmallMGemmPlan, LeavesOtherRowsLargeHeadsAndEmptyPartsToOthers) {
  const auto takes = [](int64_t rows, int64_t out, int64_t in, bool strict) {
    return plan_small_m_gemm({.rows = rows, .out = out, .in = in, .combined = false, .strict = strict}, kSms)
               .box_rows != 0;
  };
  EXPECT_TRUE(takes(1, 6144, 2560, false));
  EXPECT_TRUE(takes(2, 6144, 2560, false));
  EXPECT_TRUE(takes(64, 6144, 2560, false));
  EXPECT_FALSE(takes(65, 6144, 2560, false));
  EXPECT_TRUE(takes(16, 151936, 2560, false));
  EXPECT_TRUE(takes(32, 151936, 2560, false));
  EXPECT_FALSE(takes(33, 151936, 2560, false));
  EXPECT_TRUE(takes(33, 151936, 2560, true));
  EXPECT_TRUE(takes(64, 1024, 3584, false));
  EXPECT_FALSE(takes(65, 1024, 3584, false));
  EXPECT_TRUE(takes(16, 6144, 2560, true));
  EXPECT_TRUE(takes(64, 2560, 9728, true));
  EXPECT_TRUE(takes(1, 2560, 9728, true));
  EXPECT_TRUE(takes(2, 2560, 9728, true));
  EXPECT_FALSE(takes(16, 1016, 2048, false));
  EXPECT_FALSE(takes(16, 1024, 960, true));
  EXPECT_TRUE(takes(16, 1024, 968, true));
}

struct Problem {
  Case of;
  Tensor x, first, second, residual, bias, norm;

  explicit Problem(const Case& c) : of(c) {
    Random random(static_cast<uint64_t>(c.out + c.in));
    const double size = 1.5 / std::sqrt(static_cast<double>(c.in));
    x = random_tensor(random, c.type, {kMost, c.in}, 1), norm = random_tensor(random, c.type, {c.in}, 1);
    first = random_tensor(random, c.type, {c.out, c.in}, size),
    second = random_tensor(random, c.type, {c.out, c.in}, size);
    if (with_residual()) residual = random_tensor(random, c.type, {kMost, c.out}, 1);
    if (c.also == Also::kBias || c.also == Also::kBoth) bias = random_tensor(random, c.type, {c.out}, 1);
  }
  bool with_residual() const { return of.also == Also::kResidual || of.also == Also::kBoth; }
  // Rows [begin, end).
  Tensor run(const OpSet& ops, int64_t begin, int64_t end, Determinism determinism = Determinism::kFast) const {
    Tensor y(of.result, {end - begin, of.out});
    poison(y);
    FusedLinearArgs a{.x = x.view().slice(begin, end), .combine = of.combine};
    a.products[0] = {.weight = first, .bias = bias, .y = y};
    if (of.combine == FusedLinearArgs::Combine::kSiluMul) a.products[1].weight = second, a.num_products = 2;
    if (with_residual()) a.residual = residual.view().slice(begin, end);
    if (of.normed) a.norm_weight = norm;
    // Without these the small-M kernel runs for M of 1 to 4 too.
    ops.fused_linear(a, {.determinism = determinism, .leave_out = "gemv,sequence"});
    return y;
  }
  Tensor oracle(int64_t begin, int64_t end) const {
    const Shape shape{end - begin, of.out};
    const Tensor f(DType::kF32, shape), s(DType::kF32, shape);
    Tensor want(of.result, shape), n = copy_of(x.view().slice(begin, end));
    if (of.normed) reference::rms_norm({.x = copy_of(n), .weight = norm, .out = n}, {});
    reference::linear({.x = n, .weight = first, .bias = bias, .y = f}, {});
    reference::linear({.x = n, .weight = second, .y = s}, {});
    if (of.combine == FusedLinearArgs::Combine::kSiluMul) {
      reference::pointwise({.kind = PointwiseKind::kSiluMul, .x = f, .y = s, .out = want}, {});
    } else if (with_residual()) {
      reference::pointwise({.kind = PointwiseKind::kAdd, .x = residual.view().slice(begin, end), .y = f, .out = want},
                           {});
    } else {
      reference::linear({.x = n, .weight = first, .bias = bias, .y = want}, {});
    }
    return want;
  }
};

class Narrow : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (mirrored_cuda_ops() == nullptr) GTEST_SKIP() << "no CUDA device";
  }
};

// Ends within a tile, within 64 elements of `in`, behind whole ones within a stage, and within 8 columns; parts of one
// length and of several; clusters that take one tile, and several. The judge of all rows is strict mode's kernel for
// many, which the oracle judges elsewhere, and here with a few.
TEST_P(Narrow, MatchesTheOracleAndRepeatsItsBits) {
  const Problem problem(GetParam());
  const OpSet& ops = *mirrored_cuda_ops();
  const Tolerance rounded =
      GetParam().type == DType::kBF16 ? Tolerance{.abs = 8e-3, .rel = 8e-3} : Tolerance{.abs = 1e-3, .rel = 1e-3};
  const Tensor want = problem.run(ops, 0, kMost, Determinism::kStrict);
  EXPECT_TRUE(all_close(want.view().slice(61, 64), problem.oracle(61, 64), rounded));
  for (const int64_t rows : kRows) {
    const Tensor got = problem.run(ops, 0, rows);
    EXPECT_TRUE(all_close(got, want.view().slice(0, rows), rounded)) << rows << " rows";
    EXPECT_TRUE(bit_equal(problem.run(ops, 0, rows), got)) << rows << " rows";
    const Tensor strict = problem.run(ops, 0, rows, Determinism::kStrict);
    EXPECT_TRUE(bit_equal(strict, want.view().slice(0, rows))) << rows << " rows, strict";
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Narrow, testing::ValuesIn(kCases), [](const auto& of) {
  return std::to_string(of.param.out) + "x" + std::to_string(of.param.in);
});

}  // namespace
}  // namespace headrace::testing_support
