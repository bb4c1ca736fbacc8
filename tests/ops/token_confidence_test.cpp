// token_confidence of every kernel set against the oracle in double.
#include "headrace/ops/token_confidence.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/kernel_sets.h"
#include "support/all_close.h"
#include "support/random.h"

namespace headrace::testing_support {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Rows {
  explicit Rows(int64_t count) : best(DType::kI32, {count}), stats(DType::kF32, {count, 4}) {}
  Tensor best, stats;
  float stat(int64_t row, int64_t i) const { return stats.data_as<float>()[4 * row + i]; }
  int32_t id(int64_t row) const { return best.data_as<int32_t>()[row]; }
};

class TokenConfidence : public KernelSetTest {
 protected:
  Rows read(const TensorView& logits, int32_t vocab, std::optional<int32_t> excluded = {}, int threads = 1) const {
    Rows rows(logits.dim(0));
    poison(rows.stats);
    ops().token_confidence({logits, vocab, excluded, rows.best, rows.stats}, {.threads = threads});
    return rows;
  }
  Rows of(const std::vector<float>& values, std::optional<int32_t> excluded = {}) const {
    const Tensor logits(DType::kF32, {1, static_cast<int64_t>(values.size())});
    std::copy(values.begin(), values.end(), logits.data_as<float>());
    return read(logits, static_cast<int32_t>(values.size()), excluded);
  }
};

TEST_P(TokenConfidence, MatchesTheOracleForAnyVocabularyAndExclusion) {
  Random random(5);
  for (const int64_t vocab : {2, 3, 15, 16, 17, 1000, 1024, 1025, 5003}) {
    const Tensor logits = random_tensor(random, DType::kF32, {5, vocab + 3}, 4);
    for (const std::optional<int32_t> excluded :
         {std::optional<int32_t>(), std::optional(0), std::optional(static_cast<int32_t>(vocab) - 1)}) {
      Rows want(5);
      reference::token_confidence({logits, static_cast<int32_t>(vocab), excluded, want.best, want.stats}, {});
      const Rows got = read(logits, static_cast<int32_t>(vocab), excluded, 2);
      EXPECT_TRUE(bit_equal(got.best, want.best)) << vocab;
      EXPECT_TRUE(all_close(got.stats, want.stats, {.abs = 2e-6, .rel = 2e-6})) << vocab;
    }
  }
}

TEST_P(TokenConfidence, TiesGoToTheLowestIdAndTheSecondIsTheSame) {
  std::vector<float> values(3000, -2);
  values[2500] = values[1030] = values[1040] = 7;
  const Rows rows = of(values);
  EXPECT_EQ(rows.id(0), 1030);
  EXPECT_EQ(rows.stat(0, 2), 7);
}

TEST_P(TokenConfidence, ManyRowsMatchTheOracle) {  // more slices of them than a device reads at a time
  constexpr int32_t kVocab = 4610, kRows = 700;
  Random random(7);
  const Tensor logits = random_tensor(random, DType::kF32, {kRows, kVocab + 2}, 4);
  for (int64_t r = 0; r < kRows; r += 3) {  // ties far apart
    logits.data_as<float>()[r * (kVocab + 2) + 4100 + r % 500] = logits.data_as<float>()[r * (kVocab + 2) + 5 * r] = 20;
  }
  Rows want(kRows);
  reference::token_confidence({logits, kVocab, 1000, want.best, want.stats}, {});
  const Rows got = read(logits, kVocab, 1000, 2);
  EXPECT_TRUE(bit_equal(got.best, want.best));
  EXPECT_TRUE(all_close(got.stats, want.stats, {.abs = 2e-6, .rel = 2e-6}));
}

TEST_P(TokenConfidence, ARisingRowIsSummedFromItsLargestValue) {  // every chunk moves the sums to a new largest value
  std::vector<float> values;
  for (int i = 0; i < 4000; ++i) values.push_back(0.05f * static_cast<float>(i));
  const Rows rows = of(values);
  EXPECT_EQ(rows.id(0), 3999);
  EXPECT_NEAR(rows.stat(0, 1), -std::log(1 - std::exp(-0.05)), 1e-4);
  EXPECT_FLOAT_EQ(rows.stat(0, 2), values[3998]);
}

TEST_P(TokenConfidence, TheExcludedIdCountsForNothing) {
  const Rows rows = of({0, 50, 0, 0}, 1);
  EXPECT_EQ(rows.id(0), 0);
  EXPECT_NEAR(rows.stat(0, 1), std::log(3.0), 1e-6);
  EXPECT_NEAR(rows.stat(0, 3), std::log(3.0), 1e-6);
}

// Few behind it, and more than a device reads at a time; at an address that no vector of four begins at, and at one.
TEST_P(TokenConfidence, IdsBehindTheVocabularyAreNeverBestAndHaveTheirShare) {
  Random random(8);
  for (const auto& [vocab, width] : {std::pair(5, 6), {256, 20000}, {4097, 4100}, {4099, 13000}, {300, 301}}) {
    const Tensor logits = random_tensor(random, DType::kF32, {3, width}, 4);
    logits.data_as<float>()[width - 1] = 30;
    for (const std::optional<int32_t> excluded : {std::optional<int32_t>(), std::optional(width - 1)}) {
      Rows want(3);
      reference::token_confidence({logits, vocab, excluded, want.best, want.stats}, {});
      const Rows got = read(logits, vocab, excluded, 2);
      EXPECT_TRUE(bit_equal(got.best, want.best)) << width;
      EXPECT_TRUE(all_close(got.stats, want.stats, {.abs = 2e-6, .rel = 2e-6})) << width;
      EXPECT_LT(got.id(0), vocab);
    }
  }
  const Tensor row(DType::kF32, {1, 4});
  for (int64_t i = 0; i < 4; ++i) set_element(row, i, i < 2 ? 0 : std::log(3.0));
  const Rows rows = read(row, 2);
  EXPECT_EQ(rows.stat(0, 0), 0);
  EXPECT_NEAR(rows.stat(0, 1), std::log(8.0), 1e-6);
  EXPECT_EQ(rows.stat(0, 2), 0);
  EXPECT_NEAR(rows.stat(0, 3), 2 / 8.0 * std::log(8.0) + 6 / 8.0 * std::log(8 / 3.0), 1e-6);
}

TEST_P(TokenConfidence, MinusInfinityIsAProbabilityOfZero) {
  std::vector<float> values(40, -kInf);
  values[33] = -1000;
  const Rows rows = of(values);
  EXPECT_EQ(rows.id(0), 33);
  EXPECT_EQ(rows.stat(0, 1), 0);
  EXPECT_EQ(rows.stat(0, 2), -kInf);
  EXPECT_EQ(rows.stat(0, 3), 0);
}

TEST_P(TokenConfidence, ANaNShows) {
  for (const size_t at : {0u, 20u, 1999u}) {
    std::vector<float> values(2000, 1);
    values[at] = std::nanf("");
    EXPECT_TRUE(std::isnan(of(values).stat(0, 1))) << at;
    std::fill(values.begin(), values.end(), -kInf);
    values[at] = std::nanf("");
    EXPECT_TRUE(std::isnan(of(values).stat(0, 1))) << at;
  }
}

// A step that runs ahead reads the embedding of this id.
TEST_P(TokenConfidence, ARowWithoutNumbersHasAnIdOfTheVocabulary) {
  for (const int64_t vocab : {2, 3, 17, 300, 1025, 5003}) {
    for (const float logit : {std::nanf(""), -kInf, kInf}) {
      const Tensor row(DType::kF32, {1, vocab + 5});
      std::fill_n(row.data_as<float>(), vocab + 5, logit);
      for (const std::optional<int32_t> excluded :
           {std::optional<int32_t>(), std::optional(0), std::optional(static_cast<int32_t>(vocab) - 1)}) {
        const Rows rows = read(row, static_cast<int32_t>(vocab), excluded);
        EXPECT_FALSE(std::isfinite(rows.stat(0, 1)));
        EXPECT_TRUE(rows.id(0) >= 0 && rows.id(0) < vocab && rows.id(0) != excluded) << rows.id(0) << " of " << vocab;
      }
    }
  }
}

TEST_P(TokenConfidence, ARowsBitsDoNotDependOnTheOthersOrTheThreads) {
  Random random(6);
  const Tensor logits = random_tensor(random, DType::kF32, {9, 2049}, 3);
  const Rows all = read(logits, 2049, 7, 2);
  for (int64_t r = 0; r < 9; ++r) {
    const Rows one = read(logits.view().slice(r, r + 1), 2049, 7);
    EXPECT_TRUE(bit_equal(one.stats, all.stats.view().slice(r, r + 1)));
  }
}

TEST_P(TokenConfidence, RefusesRowsWithoutAnyId) {
  EXPECT_THROW(of({1}, 0), Error);
  EXPECT_THROW(of({1, 2}, 2), Error);
}

INSTANTIATE_TEST_SUITE_P(Sets, TokenConfidence,
                         testing::Values("reference", "portable", "avx2", "avx512", "avx512bf16", "amx", "cuda"),
                         [](const auto& set) { return set.param; });

}  // namespace
}  // namespace headrace::testing_support
