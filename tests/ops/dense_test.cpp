// The dense ops of every kernel set against the oracle, element by element.
#include <gtest/gtest.h>

#include <cmath>

#include <array>

#include "headrace/ops/cpu/dispatch.h"
#include "headrace/ops/reference/reference_ops.h"
#include "support/all_close.h"
#include "support/device_mirror.h"
#include "support/random.h"
#include "support/tolerances.h"

namespace headrace::testing_support {
namespace {

class DenseOps : public testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override {
    for (const cpu::KernelSet& set : cpu::kernel_sets()) {
      if (set.ops->name == GetParam() && set.runs_here()) ops_ = set.ops;
    }
    if (GetParam() == "cuda") ops_ = mirrored_cuda_ops();
    if (ops_ == nullptr) GTEST_SKIP() << "this machine cannot run the kernel set " << GetParam();
  }
  const OpSet* ops_ = nullptr;
  Random random_{3};
};

constexpr DType kFloats[] = {DType::kF32, DType::kBF16, DType::kF16};

TEST_P(DenseOps, LinearMatchesTheOracle) {
  for (const DType weight : kFloats) {
    for (const auto& [rows, in, out] : {std::array{1, 5, 3}, {1, 96, 70}, {3, 33, 65}, {7, 64, 130}, {66, 40, 9}}) {
      const DType type = rows == 3 ? DType::kBF16 : DType::kF32;
      const Tensor x = random_tensor(random_, type, {rows, in}), w = random_tensor(random_, weight, {out, in}, 0.2);
      const Tensor bias = random_tensor(random_, weight, {out});
      const Tensor want(type, {rows, out}), got(type, {rows, out});
      poison(got);
      const TensorView b = rows == 7 ? TensorView() : bias.view();
      reference::linear({.x = x, .weight = w, .bias = b, .y = want}, {});
      ops_->linear({.x = x, .weight = w, .bias = b, .y = got}, {.threads = 2});
      EXPECT_TRUE(all_close(got, want, dense_tolerance(type)))
          << name_of(weight) << " " << rows << "x" << in << "x" << out;
    }
  }
}

// Some rows of bf16, which sets with pair products take in tiles of four rows and four outputs.
TEST_P(DenseOps, LinearOfSomeRowsOfBF16MatchesTheOracle) {
  for (const auto& [rows, in, out] : {std::array{5, 70, 7}, {8, 32, 33}, {16, 256, 264}, {64, 31, 5}, {18, 75, 66}}) {
    const Tensor wide = random_tensor(random_, DType::kBF16, {rows, in + 3}),
                 w = random_tensor(random_, DType::kBF16, {out, in}, 0.2);
    const TensorView x = wide.view().narrow(1, 1, in + 1);
    const Tensor bias = random_tensor(random_, DType::kF32, {out});
    for (const DType type : kFloats) {
      const Tensor want(type, {rows, out}), got(type, {rows, out}), alone(type, {rows, out});
      poison(got);
      const TensorView b = rows == 8 ? TensorView() : bias.view();
      reference::linear({.x = x, .weight = w, .bias = b, .y = want}, {});
      ops_->linear({.x = x, .weight = w, .bias = b, .y = got}, {.threads = 2});
      EXPECT_TRUE(all_close(got, want, dense_tolerance(type))) << rows << "x" << in << "x" << out;
      ops_->linear({.x = x, .weight = w, .bias = b, .y = alone}, {.threads = 1});
      EXPECT_TRUE(bit_equal(got, alone)) << rows << "x" << in << "x" << out;
    }
  }
}

// Panels of outputs: every remainder of rows, a last panel of one output, depths of several parts and of no whole
// vector.
TEST_P(DenseOps, LinearByPanelsMatchesTheOracle) {
  for (const DType weight : kFloats) {
    for (const auto& [rows, in, out] :
         {std::array{9, 300, 17}, {10, 15, 130}, {11, 513, 64}, {13, 256, 1}, {70, 259, 50}}) {
      const DType type = rows == 10 ? DType::kF32 : DType::kBF16;
      const Tensor wide = random_tensor(random_, type, {rows, in + 3}),
                   w = random_tensor(random_, weight, {out, in}, 0.2);
      const TensorView x = wide.view().narrow(1, 1, in + 1);
      const Tensor bias = random_tensor(random_, weight, {out});
      const TensorView b = rows == 11 ? TensorView() : bias.view();
      const Tensor want(type, {rows, out}), got(type, {rows, out}), alone(type, {rows, out});
      poison(got);
      reference::linear({.x = x, .weight = w, .bias = b, .y = want}, {});
      ops_->linear({.x = x, .weight = w, .bias = b, .y = got}, {.threads = 2});
      EXPECT_TRUE(all_close(got, want, dense_tolerance(type)))
          << name_of(weight) << " " << rows << "x" << in << "x" << out;
      ops_->linear({.x = x, .weight = w, .bias = b, .y = alone}, {.threads = 1});
      EXPECT_TRUE(bit_equal(got, alone)) << name_of(weight) << " " << rows << "x" << in << "x" << out;
    }
  }
}

TEST_P(DenseOps, ARowsProductDoesNotDependOnTheOtherRowsOrTheThreads) {
  const Tensor x = random_tensor(random_, DType::kBF16, {70, 75}), w = random_tensor(random_, DType::kBF16, {66, 75});
  const Tensor all(DType::kF32, {70, 66}), one(DType::kF32, {1, 66});
  ops_->linear({.x = x, .weight = w, .y = all}, {.threads = 2, .determinism = Determinism::kStrict});
  for (const int64_t row : {0, 3, 63, 69}) {
    ops_->linear({.x = x.view().slice(row, row + 1), .weight = w, .y = one}, {.determinism = Determinism::kStrict});
    EXPECT_TRUE(bit_equal(one, all.view().slice(row, row + 1))) << "row " << row;
  }
}

TEST_P(DenseOps, RMSNormMatchesTheOracleOnStridedHeads) {
  for (const DType type : kFloats) {
    for (const WeightForm form : {WeightForm::kPlain, WeightForm::kPlusOne}) {
      const Tensor fused = random_tensor(random_, type, {19, 100}), gate = random_tensor(random_, type, {19, 2, 35});
      const Tensor weight = random_tensor(random_, DType::kBF16, {35});
      const TensorView x = fused.view().narrow(1, 10, 80).reshape({19, 2, 35});
      for (const TensorView& z : {TensorView(), gate.view()}) {
        const Tensor want(type, {19, 2, 35}), got(type, {19, 2, 35});
        poison(got);
        const RMSNormArgs args{.x = x, .weight = weight, .gate = z, .weight_form = form, .out = want};
        RMSNormArgs ours = args;
        ours.out = got;
        reference::rms_norm(args, {});
        ops_->rms_norm(ours, {.threads = 2});
        EXPECT_TRUE(all_close(got, want, dense_tolerance(type)));
      }
    }
  }
}

// Rows of whole pieces: half a warp's, a warp's, a block's of two and of four pieces a thread, and longer ones. A
// device has other code for gates and for weights of another type.
TEST_P(DenseOps, RMSNormHasTheSameBitsWhateverTheWeightsType) {
  for (const DType type : kFloats) {
    for (const int64_t dim : {40, 128, 200, 1024, 1032, 2560, 4096, 4104, 8192, 8200}) {
      SCOPED_TRACE(testing::Message() << name_of(type) << ", rows of " << dim);
      const DType other = type == DType::kF32 ? DType::kBF16 : DType::kF32;
      const Tensor x = random_tensor(random_, type, {37, dim}), gate = random_tensor(random_, type, {37, dim}),
                   narrow = random_tensor(random_, type == DType::kF32 ? other : type, {dim});
      const Tensor own(type, {dim}), wide(other, {dim}), want(type, {37, dim}), got(type, {37, dim}),
          same(type, {37, dim});
      for (int64_t i = 0; i < dim; ++i) {
        set_element(own, i, element_as_double(narrow, i));
        set_element(wide, i, element_as_double(narrow, i));
      }
      for (const TensorView& z : {TensorView(), gate.view()}) {
        poison(got), poison(same);
        reference::rms_norm({.x = x, .weight = own, .gate = z, .out = want}, {});
        ops_->rms_norm({.x = x, .weight = own, .gate = z, .out = got}, {.threads = 2});
        ops_->rms_norm({.x = x, .weight = wide, .gate = z, .out = same}, {.threads = 2});
        EXPECT_TRUE(all_close(got, want, dense_tolerance(type)));
        EXPECT_TRUE(bit_equal(got, same));
      }
    }
  }
}

TEST_P(DenseOps, RotaryEmbeddingTurnsTheFirstElementsAlone) {
  for (const DType type : kFloats) {
    const Tensor x = random_tensor(random_, type, {21, 3, 20});
    const Tensor want = copy_of(x), got = copy_of(x);
    const Tensor positions(DType::kI32, {21}), frequencies(DType::kF32, {5});
    for (int64_t t = 0; t < 21; ++t) set_element(positions, t, static_cast<double>(37 * t));
    for (int64_t i = 0; i < 5; ++i) set_element(frequencies, i, 1.0 / static_cast<double>(1 + i * i));
    reference::rotary_embedding({.x = want, .positions = positions, .inv_freq = frequencies, .magnitude = 1.1f}, {});
    ops_->rotary_embedding({.x = got, .positions = positions, .inv_freq = frequencies, .magnitude = 1.1f},
                           {.threads = 2});
    EXPECT_TRUE(all_close(got, want, dense_tolerance(type)));
    EXPECT_TRUE(bit_equal(got.view().narrow(2, 10, 20), x.view().narrow(2, 10, 20)));
  }
}

TEST_P(DenseOps, PointwiseMatchesTheOracle) {
  for (const DType type : kFloats) {
    for (const PointwiseKind kind :
         {PointwiseKind::kAdd, PointwiseKind::kSiluMul, PointwiseKind::kSigmoidMul, PointwiseKind::kMul,
          PointwiseKind::kGeluMul, PointwiseKind::kSoftCap, PointwiseKind::kDivide}) {
      for (const int64_t x_dim : {300, 1}) {
        const Tensor x = random_tensor(random_, type, {18, x_dim}, 3), y = random_tensor(random_, type, {18, 300});
        const Tensor want(type, {18, 300}), got = copy_of(y);
        reference::pointwise({.kind = kind, .x = x, .y = y, .out = want}, {});
        ops_->pointwise({.kind = kind, .x = x, .y = got, .out = got}, {.threads = 2});  // in place
        EXPECT_TRUE(all_close(got, want, dense_tolerance(type)));
      }
    }
  }
}

TEST_P(DenseOps, SoftCapOfSmallLogitsIsAsExactAsThatOfLargeOnes) {
  const Tensor cap(DType::kF32, {1, 1}), y(DType::kF32, {1, 400}), want(DType::kF32, {1, 400}),
      got(DType::kF32, {1, 400});
  set_element(cap, 0, 30);
  for (int32_t i = 0; i < 400; ++i) set_element(y, i, (i % 2 == 0 ? 1 : -1) * std::pow(10.0, 0.015 * i - 4));
  reference::pointwise({.kind = PointwiseKind::kSoftCap, .x = cap, .y = y, .out = want}, {});
  ops_->pointwise({.kind = PointwiseKind::kSoftCap, .x = cap, .y = y, .out = got}, {});
  EXPECT_TRUE(all_close(got, want, {.abs = 0, .rel = 1e-6}));
}

TEST_P(DenseOps, EmbeddingGathersRowsAndRefusesForeignIds) {
  const Tensor table = random_tensor(random_, DType::kBF16, {7, 33}), ids = Tensor::zeros(DType::kI32, {3});
  set_element(ids, 1, 6);
  const Tensor want(DType::kF32, {3, 33}), got(DType::kF32, {3, 33});
  reference::embedding({.ids = ids, .table = table, .out = want}, {});
  ops_->embedding({.ids = ids, .table = table, .out = got}, {});
  EXPECT_TRUE(bit_equal(got, want));
  set_element(ids, 2, 7);
  EXPECT_THROW(ops_->embedding({.ids = ids, .table = table, .out = got}, {}), Error);
}

std::vector<std::string_view> set_names() {
  std::vector<std::string_view> names;
  for (const cpu::KernelSet& set : cpu::kernel_sets()) names.push_back(set.ops->name);
  names.push_back("cuda");
  return names;
}

INSTANTIATE_TEST_SUITE_P(Sets, DenseOps, testing::ValuesIn(set_names()),
                         [](const auto& set) { return std::string(set.param); });

}  // namespace
}  // namespace headrace::testing_support
