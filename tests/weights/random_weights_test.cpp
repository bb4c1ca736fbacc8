#include <gtest/gtest.h>

#include <cmath>

#include "headrace/weights/checkpoint.h"

namespace headrace {
namespace {

struct Moments {
  double mean = 0, stddev = 0;
};

Moments moments_of(const TensorView& view) {
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < view.numel(); ++i) {
    const double x = element_as_double(view, i);
    sum += x, squares += x * x;
  }
  const double mean = sum / static_cast<double>(view.numel());
  return {mean, std::sqrt(squares / static_cast<double>(view.numel()) - mean * mean)};
}

TEST(RandomWeights, DependOnSeedAndNameAndNotOnThreads) {
  Checkpoint one = Checkpoint::random(7, 1), two = Checkpoint::random(7, 2), other = Checkpoint::random(8, 1);
  const Shape shape{701, 333};  // several chunks and a last group of fewer than four
  const TensorView a = one.tensor("a", shape);
  EXPECT_TRUE(a.dtype() == DType::kBF16);
  const auto bytes = [](const TensorView& view) {
    return std::string_view(static_cast<const char*>(view.data()), static_cast<size_t>(view.bytes()));
  };
  EXPECT_EQ(bytes(a), bytes(two.tensor("a", shape)));
  EXPECT_NE(bytes(a), bytes(one.tensor("b", shape)));
  EXPECT_NE(bytes(a), bytes(other.tensor("a", shape)));
}

TEST(RandomWeights, HaveTheVarianceThatWasAskedFor) {
  Checkpoint checkpoint = Checkpoint::random(1, 2);
  const Moments matrix = moments_of(checkpoint.tensor("matrix", {400, 256}));
  EXPECT_NEAR(matrix.mean, 0, 1e-3);
  EXPECT_NEAR(matrix.stddev, 1.0 / 16, 1e-3);  // five times the error of 100k samples
  const Moments norm = moments_of(checkpoint.tensor("norm", {100'000}, {.mean = 1}));
  EXPECT_NEAR(norm.mean, 1, 2e-3);
  EXPECT_NEAR(norm.stddev, 0.1, 2e-3);
  EXPECT_NEAR(moments_of(checkpoint.tensor("wide", {100'000}, {.stddev = 2.0})).stddev, 2, 2e-2);
}

TEST(RandomWeights, ReportTheBytesThatAreMade) {
  std::vector<int64_t> numbers;
  Checkpoint checkpoint = Checkpoint::random(1, 1, [&numbers](std::string_view, int64_t done, int64_t total) {
    numbers.insert(numbers.end(), {done, total});
  });
  checkpoint.tensor("a", {2, 3});
  checkpoint.tensor("b", {5});
  checkpoint.tensor("a", {2, 3});
  EXPECT_EQ(numbers, (std::vector<int64_t>{12, 0, 22, 0}));
}

TEST(RandomWeights, OneNameHasOneShape) {
  Checkpoint checkpoint = Checkpoint::random(1, 1);
  const TensorView first = checkpoint.tensor("a", {2, 3});
  EXPECT_EQ(checkpoint.tensor("a", {2, 3}).data(), first.data());
  EXPECT_THROW(checkpoint.tensor("a", {3, 2}), Error);
  EXPECT_FALSE(checkpoint.has("a"));
  EXPECT_THROW(checkpoint.shape_of("a"), Error);
  EXPECT_NO_THROW(checkpoint.require_all_used());
}

}  // namespace
}  // namespace headrace
