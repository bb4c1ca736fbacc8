// top_tokens of every kernel set against a sort of all ids.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <vector>

#include "ops/host_tensors.h"
#include "ops/kernel_sets.h"
#include "support/all_close.h"
#include "support/random.h"
#include "support/refusal.h"

namespace headrace::testing_support {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

struct Top {
  Tensor ids, logits;
};

// Returns the first of all ids of rows without NaN.
Top sorted(const TensorView& logits, int32_t vocab, std::optional<int32_t> excluded, const std::vector<int32_t>& rows,
           int64_t count) {
  Top top{Tensor(DType::kI32, {std::ssize(rows), count}), Tensor(DType::kF32, {std::ssize(rows), count})};
  for (size_t r = 0; r < rows.size(); ++r) {
    const auto* row = static_cast<const float*>(logits.data()) + rows[r] * logits.stride(0);
    std::vector<int32_t> ids(static_cast<size_t>(vocab));
    std::iota(ids.begin(), ids.end(), 0);
    if (excluded) std::erase(ids, *excluded);
    const auto end = ids.begin() + std::min(std::ssize(ids), count);
    std::partial_sort(ids.begin(), end, ids.end(),
                      [row](int32_t a, int32_t b) { return row[a] != row[b] ? row[a] > row[b] : a < b; });
    for (int64_t i = 0; i < count; ++i) {
      const int32_t id = i < std::ssize(ids) ? ids[static_cast<size_t>(i)] : -1;
      const int64_t at = static_cast<int64_t>(r) * count + i;
      top.ids.data_as<int32_t>()[at] = id, top.logits.data_as<float>()[at] = id < 0 ? kNever : row[id];
    }
  }
  return top;
}

class TopTokens : public KernelSetTest {
 protected:
  Top found(const TensorView& logits, int32_t vocab, std::optional<int32_t> excluded, const std::vector<int32_t>& rows,
            int64_t count) const {
    Top top{Tensor(DType::kI32, {std::ssize(rows), count}), Tensor(DType::kF32, {std::ssize(rows), count})};
    std::fill_n(top.ids.data_as<int32_t>(), top.ids.numel(), -7);
    poison(top.logits);
    ops().top_tokens({.logits = logits,
                      .vocab = vocab,
                      .excluded_id = excluded,
                      .rows = ids_of(rows),
                      .ids = top.ids,
                      .top = top.logits},
                     {.threads = 2});
    return top;
  }
  void expect_sorted(const TensorView& logits, int32_t vocab, std::optional<int32_t> excluded,
                     const std::vector<int32_t>& rows, int64_t count) const {
    const Top want = sorted(logits, vocab, excluded, rows, count), got = found(logits, vocab, excluded, rows, count);
    EXPECT_TRUE(bit_equal(got.ids, want.ids)) << vocab << " ids, first " << count;
    EXPECT_TRUE(bit_equal(got.logits, want.logits)) << vocab << " ids, first " << count;
  }
};

// Rows are strided, and all ids from `vocab` on have larger logits.
TEST_P(TopTokens, AreTheFirstOfAllIdsSorted) {
  for (const int32_t vocab : {1, 2, 5, 127, 128, 129, 700, 4095, 4096, 4097, 9000, 151936}) {
    Random random(static_cast<uint64_t>(vocab));
    const Tensor memory = random_tensor(random, DType::kF32, {4, vocab + 6}, 4);
    const TensorView logits = memory.view().narrow(1, 1, vocab + 6);
    for (int64_t r = 0; r < 4; ++r) std::fill_n(memory.data_as<float>() + r * (vocab + 6) + 1 + vocab, 5, 1e30f);
    for (const int64_t count : {1, 2, 20, 127, 128}) {
      const auto best = sorted(logits, vocab, {}, {2}, 1).ids.data_as<int32_t>()[0];
      for (const std::optional<int32_t> excluded :
           {std::optional<int32_t>(), std::optional(0), std::optional(best), std::optional(vocab - 1)}) {
        expect_sorted(logits, vocab, excluded, {2, 0, 2, 3}, count);
      }
    }
  }
}

TEST_P(TopTokens, EqualLogitsStandInTheOrderOfTheirIds) {
  Random random(3);
  for (const int32_t vocab : {50, 4100, 70000}) {
    const Tensor logits = Tensor::zeros(DType::kF32, {3, vocab});  // a row of zeros
    auto* zeros = logits.data_as<float>() + vocab;
    auto* few = zeros + vocab;
    for (int32_t id = 0; id < vocab; ++id) {
      zeros[id] = random.below(2) == 0 ? 0.0f : -0.0f;
      few[id] = static_cast<float>(random.below(4));
    }
    for (const int64_t count : {1, 20, 128}) expect_sorted(logits, vocab, 3, {0, 1, 2}, count);
  }
}

// Rows as masks leave them.
TEST_P(TopTokens, MinusInfinityIsALogitLikeAnother) {
  for (const int32_t vocab : {10, 5000, 151936}) {
    const Tensor logits(DType::kF32, {3, vocab});
    std::fill_n(logits.data_as<float>(), logits.numel(), kNever);
    auto* few = logits.data_as<float>() + vocab;
    few[vocab - 1] = -5, few[vocab / 2] = 3, few[7] = -1e38f;
    std::fill_n(logits.data_as<float>() + 2 * vocab, vocab, -kNever);
    for (const int64_t count : {1, 20, 128}) expect_sorted(logits, vocab, {}, {0, 1, 2}, count);
  }
}

TEST_P(TopTokens, RisingAndFallingRowsAreSortedToo) {
  constexpr int32_t kVocab = 40000;
  const Tensor logits(DType::kF32, {2, kVocab});
  for (int32_t id = 0; id < kVocab; ++id) {
    logits.data_as<float>()[id] = 0.5f * static_cast<float>(id);
    logits.data_as<float>()[kVocab + id] = -0.5f * static_cast<float>(id);
  }
  for (const int64_t count : {1, 20, 128}) expect_sorted(logits, kVocab, kVocab - 2, {0, 1}, count);
}

// More rows than a device takes at once, which it then reads without parts.
TEST_P(TopTokens, ManyRows) {
  constexpr int32_t kVocab = 8200;
  Random random(7);
  const Tensor logits = random_tensor(random, DType::kF32, {7, kVocab}, 4);
  std::vector<int32_t> rows;
  for (int32_t i = 0; i < 1500; ++i) rows.push_back(i % 7);
  for (const int64_t count : {20, 128}) expect_sorted(logits, kVocab, {}, rows, count);
  rows.resize(150);
  expect_sorted(logits, kVocab, {}, rows, 128);
}

TEST_P(TopTokens, RowsWithNaNHaveAnyIdsEachOnce) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  for (const int32_t vocab : {30, 129, 151936}) {
    Random random(static_cast<uint64_t>(vocab));
    const Tensor logits = random_tensor(random, DType::kF32, {3, vocab});
    for (int32_t id = 0; id < vocab; ++id) {
      logits.data_as<float>()[id] = id % 2 == 0 ? kNaN : -kNaN;
      if (random.below(3) == 0) logits.data_as<float>()[vocab + id] = kNaN;
    }
    logits.data_as<float>()[2 * vocab + 5] = kNaN;
    constexpr int64_t kCount = 128;
    const Top top = found(logits, vocab, 4, {0, 1, 2}, kCount);
    for (int64_t r = 0; r < 3; ++r) {
      std::set<int32_t> ids;
      for (int64_t i = 0; i < kCount; ++i) {
        const int32_t id = top.ids.data_as<int32_t>()[r * kCount + i];
        const float got = top.logits.data_as<float>()[r * kCount + i];
        if (i >= vocab - 1) {
          EXPECT_EQ(id, -1);
          EXPECT_EQ(got, kNever);
          continue;
        }
        ASSERT_TRUE(id >= 0 && id < vocab && id != 4 && ids.insert(id).second) << id;
        const float want = logits.data_as<float>()[r * vocab + id];
        EXPECT_TRUE(got == want || (std::isnan(got) && std::isnan(want))) << id;
      }
    }
  }
}

TEST_P(TopTokens, WithoutRowsNothingIsWritten) {
  const Tensor logits = Tensor::zeros(DType::kF32, {2, 4});
  EXPECT_NO_THROW(found(logits, 4, {}, {}, 3));
}

TEST_P(TopTokens, RefusesOtherShapesAndTypes) {
  const Tensor logits = Tensor::zeros(DType::kF32, {2, 4}), row = ids_of({1});
  const Tensor ids(DType::kI32, {1, 3}), top(DType::kF32, {1, 3});
  const auto sentence = [&](const TopTokensArgs& args) {
    const Refusal refusal = refusal_of([&] { ops().top_tokens(args, {}); });
    EXPECT_EQ(refusal.code, ErrorCode::kInvalidArgument);
    return refusal.sentence;
  };
  EXPECT_EQ(sentence({.logits = ids, .vocab = 3, .rows = row, .ids = ids, .top = top}),
            "top_tokens: logits: dtype is int32, expected float32");
  for (const int32_t vocab : {0, 5}) {
    EXPECT_EQ(sentence({.logits = logits, .vocab = vocab, .rows = row, .ids = ids, .top = top}),
              "top_tokens: vocab is " + std::to_string(vocab) + ", expected 1 to 4");
  }
  for (const int64_t count : {0, 129}) {
    const Tensor other_ids(DType::kI32, {1, count}), other_top(DType::kF32, {1, count});
    EXPECT_EQ(sentence({.logits = logits, .vocab = 4, .rows = row, .ids = other_ids, .top = other_top}),
              "top_tokens: ids is [1, " + std::to_string(count) + "], expected rows of 1 to 128");
  }
  EXPECT_EQ(sentence({.logits = logits, .vocab = 4, .rows = row, .ids = ids, .top = top.view().narrow(1, 0, 2)}),
            "top_tokens: top: shape is [1, 2], expected [1, 3]");
  EXPECT_EQ(sentence({.logits = logits, .vocab = 4, .rows = ids_of({0, 1}), .ids = ids, .top = top}),
            "top_tokens: rows: shape is [2], expected [1]");
}

HR_INSTANTIATE_KERNEL_SETS(TopTokens);
INSTANTIATE_TEST_SUITE_P(Oracle, TopTokens, testing::Values("reference"), [](const auto& set) { return set.param; });

}  // namespace
}  // namespace headrace::testing_support
