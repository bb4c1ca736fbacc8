// Drawn tokens: what the limits leave, ties, and every set against the reference, draw by draw.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <vector>

#include "headrace/kernels/reference/reference_ops.h"
#include "kernels/kernel_sets.h"
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
  ops.sample_tokens({.logits = logits,
                     .vocab = vocab,
                     .excluded_id = excluded_id,
                     .best = best,
                     .stats = stats,
                     .draws = there,
                     .ids = result.ids,
                     .chosen = result.chosen},
                    {});
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

INSTANTIATE_TEST_SUITE_P(Sets, SampleTokens, testing::Values("reference", "portable", "cuda"),
                         [](const auto& set) { return set.param; });

}  // namespace
}  // namespace headrace::testing_support
