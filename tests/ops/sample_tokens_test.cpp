// Drawn tokens: what the limits leave, ties, and every set against the reference, draw by draw.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "headrace/ops/cpu/distance_bins.h"
#include "headrace/ops/reference/reference_ops.h"
#include "ops/kernel_sets.h"
#include "support/all_close.h"
#include "support/random.h"

namespace headrace::testing_support {
namespace {

struct Drawn {
  Tensor ids, chosen;
};

// One token for each row and draw.
Drawn drawn(const OpSet& ops, const Tensor& logits, int32_t vocab, const std::vector<TokenDraw>& draws,
            std::optional<int32_t> excluded_id = {}) {
  const int64_t rows = logits.dim(0);
  const Tensor best(DType::kI32, {rows}), stats(DType::kF32, {rows, 4});
  reference::token_confidence({logits, vocab, excluded_id, best, stats}, {});
  const Tensor there(DType::kU8, {rows, static_cast<int64_t>(sizeof(TokenDraw))});
  std::memcpy(there.data(), draws.data(), static_cast<size_t>(there.bytes()));
  Drawn result{Tensor(DType::kI32, {rows}), Tensor(DType::kF32, {rows})};
  SampleTokensArgs args{.logits = logits,
                        .vocab = vocab,
                        .excluded_id = excluded_id,
                        .best = best,
                        .stats = stats,
                        .draws = there,
                        .ids = result.ids,
                        .chosen = result.chosen};
  ops.sample_tokens(args, {});
  const Tensor ids = copy_of(result.ids);
  args.on_host = draws;
  ops.sample_tokens(args, {});
  EXPECT_TRUE(bit_equal(result.ids, ids));
  return result;
}

Tensor rows_of(const std::vector<float>& row, int64_t count) {
  Tensor logits(DType::kF32, {count, static_cast<int64_t>(row.size())});
  for (int64_t r = 0; r < count; ++r) std::ranges::copy(row, logits.data_as<float>() + r * logits.dim(1));
  return logits;
}

class SampleTokens : public KernelSetTest {
 protected:
  // The ids that a hundred evenly spread numbers fall on, in their order, with how often each came.
  std::vector<std::pair<int32_t, int>> spread(const std::vector<float>& row, TokenDraw draw,
                                              std::optional<int32_t> excluded_id = {}) const {
    std::vector<TokenDraw> draws(100, draw);
    for (size_t i = 0; i < draws.size(); ++i) draws[i].uniform = (static_cast<double>(i) + 0.5) / 100;
    const Drawn got = drawn(ops(), rows_of(row, 100), static_cast<int32_t>(row.size()), draws, excluded_id);
    std::vector<std::pair<int32_t, int>> ids;
    for (int64_t r = 0; r < 100; ++r) {
      const int32_t id = got.ids.data_as<int32_t>()[r];
      EXPECT_EQ(got.chosen.data_as<float>()[r], row[static_cast<size_t>(id)]);
      if (ids.empty() || ids.back().first != id) ids.emplace_back(id, 0);
      ++ids.back().second;
    }
    return ids;
  }
};
using Ids = std::vector<std::pair<int32_t, int>>;
const std::vector<float> kLogits = {std::log(10.0f), std::log(20.0f), std::log(50.0f), std::log(20.0f)};

TEST_P(SampleTokens, StandInDescendingOrderTiesToTheLowestId) {
  EXPECT_EQ(spread(kLogits, {.temperature = 1}), (Ids{{2, 50}, {1, 20}, {3, 20}, {0, 10}}));
  EXPECT_EQ(spread(kLogits, {.temperature = 0}), (Ids{{2, 100}}));
  EXPECT_EQ(spread({1, 3, 3}, {.temperature = 0}), (Ids{{1, 100}}));
  EXPECT_EQ(spread({0, -0.0f, 0, -0.0f}, {.temperature = 1}), (Ids{{0, 25}, {1, 25}, {2, 25}, {3, 25}}));
}

TEST_P(SampleTokens, LimitsCutTheEndOfTheOrder) {
  EXPECT_EQ(spread(kLogits, {.temperature = 1, .top_k = 1}), (Ids{{2, 100}}));
  EXPECT_EQ(spread(kLogits, {.temperature = 1, .top_k = 2}), (Ids{{2, 71}, {1, 29}}));  // 5/7
  EXPECT_EQ(spread(kLogits, {.temperature = 1, .top_k = 9}), (Ids{{2, 50}, {1, 20}, {3, 20}, {0, 10}}));
  EXPECT_EQ(spread(kLogits, {.temperature = 1, .top_p = 0.4f}), (Ids{{2, 100}}));
  EXPECT_EQ(spread(kLogits, {.temperature = 1, .top_p = 0.6f}), (Ids{{2, 71}, {1, 29}}));
  EXPECT_EQ(spread(kLogits, {.temperature = 1, .top_p = 0.6f, .top_k = 2}), (Ids{{2, 100}}));  // of 5/7
  EXPECT_EQ(spread(kLogits, {.temperature = 1, .top_p = 0.6f, .top_k = 2, .top_p_of = TopPOf::kAll}),
            (Ids{{2, 71}, {1, 29}}));
  EXPECT_EQ(spread(kLogits, {.temperature = 1, .top_p = 0.95f, .top_k = 2, .top_p_of = TopPOf::kAll}),
            (Ids{{2, 71}, {1, 29}}));  // which have less than that
  EXPECT_EQ(spread(kLogits, {.temperature = 1, .min_p = 0.3f}), (Ids{{2, 56}, {1, 22}, {3, 22}}));
  EXPECT_EQ(spread(kLogits, {.temperature = 1, .min_p = 1}), (Ids{{2, 100}}));
}

TEST_P(SampleTokens, LeaveOutTheExcludedIdAndWhatHasNoProbability) {
  EXPECT_EQ(spread(kLogits, {.temperature = 1}, 2), (Ids{{1, 40}, {3, 40}, {0, 20}}));
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(spread({kNever, 1, kNever, kNever}, {.temperature = 1}), (Ids{{1, 100}}));
}

// A sum over all in the order of the ids is larger than one in descending order, where the small ones are lost.
TEST_P(SampleTokens, TheLastNumberFallsOnNothingWithoutProbability) {
  std::vector<float> row(200, -39.1f);
  row.push_back(0);
  row.push_back(-std::numeric_limits<float>::infinity());
  const Drawn got = drawn(ops(), rows_of(row, 1), static_cast<int32_t>(row.size()),
                          {{.uniform = std::nextafter(1.0, 0.0), .temperature = 1}});
  EXPECT_NE(got.ids.data_as<int32_t>()[0], 201);
}

TEST_P(SampleTokens, ALateDrawOfALargeVocabularyFindsItsToken) {  // beyond the part that a CPU sorts at first
  const std::vector<TokenDraw> draws = {{.uniform = 0, .temperature = 1},
                                        {.uniform = 0.3, .temperature = 1},
                                        {.uniform = 0.9, .temperature = 1},
                                        {.uniform = 0.99999, .temperature = 1}};
  const Drawn got = drawn(ops(), rows_of(std::vector<float>(5000, 0.0f), 4), 5000, draws);
  for (int64_t r = 0; r < 4; ++r) {
    EXPECT_EQ(got.ids.data_as<int32_t>()[r], static_cast<int32_t>(draws[static_cast<size_t>(r)].uniform * 5000));
  }
}

// Rows of several slices, ids behind the vocabulary, many equal logits, every limit.
TEST_P(SampleTokens, AreThoseOfTheReference) {
  constexpr int64_t kRows = 60, kIds = 9001;
  Random random(17);
  for (const double scale : {0.01, 1.0, 6.0}) {
    Tensor logits = random_tensor(random, DType::kF32, {kRows, kIds + 7}, scale);
    for (int64_t i = 0; i < logits.numel(); ++i) {
      float& x = logits.data_as<float>()[i];
      if (i % 3 == 0) x = std::round(x * 4) / 4;
    }
    std::vector<TokenDraw> draws;
    for (int64_t r = 0; r < kRows; ++r) {
      draws.push_back({.uniform = static_cast<double>(random.below(1 << 30)) / (1 << 30),
                       .temperature = r % 10 == 0  ? 0.0f
                                      : r % 3 == 0 ? 0.7f
                                                   : 1.3f,
                       .top_p = r % 4 == 1 ? 0.9f : 1.0f,
                       .min_p = r % 5 == 2 ? 0.02f : 0.0f,
                       .top_k = r % 7 == 3 ? 50 : 0,
                       .top_p_of = r % 2 == 0 ? TopPOf::kAll : TopPOf::kTopK});
    }
    const Drawn want = drawn(reference::ops(), logits, kIds, draws, 33);
    const Drawn got = drawn(ops(), logits, kIds, draws, 33);
    EXPECT_TRUE(bit_equal(got.ids, want.ids));
    EXPECT_TRUE(bit_equal(got.chosen, want.chosen));
  }
}

// What rows can look like to a search that cuts them in parts.
enum class Shape : uint8_t {
  kNormal,
  kFlat,       // nearly equal
  kEqual,      // all of them
  kTwoValues,  // half of the row each
  kRounded,    // as bfloat16 logits are: many ties
  kDominated,  // one far above the rest
  kMostNever,  // nine of ten are minus infinity
  kWide,       // beyond any weight
};
constexpr std::array kShapes = {Shape::kNormal,  Shape::kFlat,      Shape::kEqual,     Shape::kTwoValues,
                                Shape::kRounded, Shape::kDominated, Shape::kMostNever, Shape::kWide};

void fill(Shape shape, Random& random, std::span<float> row) {
  const auto level = static_cast<float>(random.normal() * 10);
  for (float& x : row) {
    const auto noise = static_cast<float>(random.normal());
    switch (shape) {
      case Shape::kNormal: x = level + 2 * noise; break;
      case Shape::kFlat: x = level + 1e-3f * noise; break;
      case Shape::kEqual: x = level; break;
      case Shape::kTwoValues: x = noise > 0 ? level : level - 0.5f; break;
      case Shape::kRounded: x = std::round(noise * 16) / 8; break;
      case Shape::kDominated: x = 1e-2f * noise; break;
      case Shape::kMostNever: x = random.below(10) == 0 ? noise : -std::numeric_limits<float>::infinity(); break;
      case Shape::kWide: x = 300 * noise; break;
    }
  }
  if (shape == Shape::kDominated) row[static_cast<size_t>(random.below(static_cast<int64_t>(row.size())))] = 20;
  if (shape == Shape::kMostNever) row[0] = 20;
}

// `vocab` bounds the top k.
TokenDraw any_draw(Random& random, int32_t vocab) {
  const auto one_of = [&random](const auto& values) {
    return values[static_cast<size_t>(random.below(static_cast<int64_t>(values.size())))];
  };
  const std::array top_ks = {0, 0, 0, 1, 20, 20, 50, 1024, 1025, vocab - 1, vocab, vocab + 5};
  return {.uniform = random.uniform(),
          .temperature = one_of(std::array{0.0f, 1e-3f, 0.1f, 0.7f, 0.7f, 1.0f, 1.0f, 2.0f, 100.0f}),
          .top_p = one_of(std::array{1.0f, 1.0f, 0.95f, 0.95f, 0.8f, 0.3f, 0.9999f, 1e-9f, 0.0f}),
          .min_p = one_of(std::array{0.0f, 0.0f, 0.0f, 0.05f, 1e-5f, 1.0f}),
          .top_k = one_of(top_ks),
          .top_p_of = one_of(std::array{TopPOf::kTopK, TopPOf::kTopK, TopPOf::kAll})};
}

struct AnyRows {
  Tensor logits;
  std::vector<TokenDraw> draws;
};
AnyRows any_rows(Random& random, int64_t rows, int32_t vocab) {
  AnyRows any{Tensor(DType::kF32, {rows, vocab + random.below(6)}), {}};
  for (int64_t r = 0; r < rows; ++r) {
    const Shape shape = kShapes[static_cast<size_t>(r) % kShapes.size()];
    fill(shape, random, {any.logits.data_as<float>() + r * any.logits.dim(1), static_cast<size_t>(any.logits.dim(1))});
    any.draws.push_back(any_draw(random, vocab));
  }
  return any;
}

TEST_P(SampleTokens, OfRowsOfAnyShapeAreThoseOfTheReference) {
  struct Case {
    int64_t rows;
    int32_t vocab;
  };
  Random random(23);
  for (const auto [rows, vocab] : {Case{8, 2}, {300, 5}, {1, 700}, {265, 1025}, {67, 9001}, {96, 20011}, {3, 60013}}) {
    for (const std::optional<int32_t> excluded : {std::optional<int32_t>(), std::optional(vocab / 2)}) {
      const AnyRows any = any_rows(random, rows, vocab);
      const Drawn want = drawn(reference::ops(), any.logits, vocab, any.draws, excluded);
      const Drawn got = drawn(ops(), any.logits, vocab, any.draws, excluded);
      for (int64_t r = 0; r < rows; ++r) {
        const TokenDraw& draw = any.draws[static_cast<size_t>(r)];
        EXPECT_EQ(got.ids.data_as<int32_t>()[r], want.ids.data_as<int32_t>()[r])
            << "row " << r << " of " << rows << ", vocabulary " << vocab << ", uniform " << draw.uniform
            << ", temperature " << draw.temperature << ", top_p " << draw.top_p << " of "
            << static_cast<int>(draw.top_p_of) << ", min_p " << draw.min_p << ", top_k " << draw.top_k;
      }
      EXPECT_TRUE(bit_equal(got.chosen, want.chosen));
    }
  }
}

// A device looks at some ids first; here those have the largest logits, so that they say too little of the others.
TEST_P(SampleTokens, ASampleOfTheRowMayMislead) {
  constexpr int32_t kVocab = 60013;
  Random random(31);
  const Tensor row = random_tensor(random, DType::kF32, {1, kVocab}, 1);
  for (int i = 0; i < 25; ++i) row.data_as<float>()[i * (kVocab / 256)] = 20 + static_cast<float>(i);
  const Tensor logits = rows_of({row.data_as<float>(), row.data_as<float>() + kVocab}, 40);
  std::vector<TokenDraw> draws;
  for (int i = 0; i < 40; ++i) draws.push_back({.uniform = random.uniform(), .temperature = 100, .top_k = 50});
  EXPECT_TRUE(bit_equal(drawn(ops(), logits, kVocab, draws).ids, drawn(reference::ops(), logits, kVocab, draws).ids));
}

TEST_P(SampleTokens, ARowDoesNotDependOnTheOthers) {
  constexpr int32_t kVocab = 9001;
  Random random(29);
  const AnyRows any = any_rows(random, 150, kVocab);
  const Drawn all = drawn(ops(), any.logits, kVocab, any.draws);
  for (int64_t r = 0; r < 24; ++r) {
    const Tensor row = copy_of(any.logits.view().slice(r, r + 1));
    const Drawn alone = drawn(ops(), row, kVocab, {any.draws[static_cast<size_t>(r)]});
    EXPECT_EQ(alone.ids.data_as<int32_t>()[0], all.ids.data_as<int32_t>()[r]) << r;
  }
}

TEST_P(SampleTokens, NumbersAtTheEndsFallOnTheFirstAndTheLast) {
  const std::vector<float> row = {1, 2, 3, 4};
  const double most = std::nextafter(1.0, 0.0);
  const auto id = [&](const TokenDraw& draw) {
    return drawn(ops(), rows_of(row, 1), 4, {draw}).ids.data_as<int32_t>()[0];
  };
  EXPECT_EQ(id({.uniform = 0, .temperature = 1}), 3);
  EXPECT_EQ(id({.uniform = most, .temperature = 1}), 0);
  EXPECT_EQ(id({.uniform = most, .temperature = 1, .top_k = 2}), 2);
  EXPECT_EQ(id({.uniform = most, .temperature = 1, .top_p = 0.9f}), 1);  // 0.64, 0.88, 0.97
}

// The caller sees from the row's log_sum that the token means nothing.
TEST_P(SampleTokens, OfARowWithoutNumbersAnIdOfTheVocabularyComes) {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::vector<float>> rows = {
      {kNaN, kNaN, kNaN}, {1, kNaN, 2}, {1, kInf, 2}, {-kInf, -kInf, -kInf}, {kNaN, kInf, -kInf}};
  for (const std::vector<float>& row : rows) {
    for (const TokenDraw& draw : {TokenDraw{.uniform = 0.5, .temperature = 1},
                                  TokenDraw{.uniform = 0.5, .temperature = 1, .top_p = 0.9f, .top_k = 2}}) {
      const int32_t id = drawn(ops(), rows_of(row, 1), 3, {draw}).ids.data_as<int32_t>()[0];
      EXPECT_TRUE(id >= 0 && id < 3) << id;
    }
  }
}

TEST(DistanceBins, WeighAsTheExponentialDoesAndAscend) {
  using cpu::DistanceBins;
  const DistanceBins bins;
  size_t last = 0;
  for (double distance = 1e-7; distance < 200; distance *= 1.0007) {
    const size_t bin = DistanceBins::of(distance);
    ASSERT_TRUE(bin >= last && bin < DistanceBins::kCount) << distance;
    ASSERT_NEAR(bins.weight(bin, distance), std::exp(-distance), 3e-16) << distance;
    ASSERT_LE(DistanceBins::least_weight(bin), std::exp(-distance)) << distance;
    last = bin;
  }
  EXPECT_EQ(last, DistanceBins::kCount - 1);
  EXPECT_EQ(bins.weight(DistanceBins::of(0), 0), 1);
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(bins.weight(DistanceBins::of(kNaN), kNaN), 0);
}

INSTANTIATE_TEST_SUITE_P(Sets, SampleTokens, testing::Values("reference", "portable", "cuda"),
                         [](const auto& set) { return set.param; });

}  // namespace
}  // namespace headrace::testing_support
