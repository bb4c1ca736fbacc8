// The repetition penalty: what occurred, whose it is, and every set against a plain loop.
#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <vector>

#include "ops/host_tensors.h"
#include "ops/kernel_sets.h"
#include "support/all_close.h"
#include "support/random.h"

namespace headrace::testing_support {
namespace {

class PenalizeTokens : public KernelSetTest {};

TEST_P(PenalizeTokens, DividesPositiveAndMultipliesOtherLogitsOfWhatOccurred) {
  const float inf = std::numeric_limits<float>::infinity();
  const Tensor logits = numbers_of({4, -2, 3, 0, -inf, inf, 8, 9});
  const Tensor seen = Tensor::zeros(DType::kI32, {1, 1});
  ops().penalize_tokens({.logits = logits.view().reshape({1, 8}),
                         .vocab = 7,
                         .seen = seen,
                         .new_ids = ids_of({0, 1, 3, 4, 5, 0, 7, -1}),  // the last two are no ids
                         .new_texts = ids_of({0, 0, 0, 0, 0, 0, 0, 0}),
                         .texts = ids_of({0}),
                         .penalties = numbers_of({2})},
                        {});
  EXPECT_TRUE(bit_equal(logits, numbers_of({2, -4, 3, 0, -inf, inf, 8, 9})));
  EXPECT_EQ(seen.data_as<int32_t>()[0], 0b111011);
}

// Steps of some texts, whose rows come in any order and are nobody's at times, as a set of ids for each has it.
TEST_P(PenalizeTokens, AreThoseOfEachRowsOwnTextStepAfterStep) {
  for (const int32_t vocab : {1, 31, 32, 33, 700, 151936}) {
    Random random(static_cast<uint64_t>(vocab));
    constexpr int32_t kTexts = 3;
    const auto below = [&random](int64_t n) { return static_cast<int32_t>(random.below(n)); };
    const Tensor seen = Tensor::zeros(DType::kI32, {kTexts, PenalizeTokensArgs::words_of(vocab) + 1});
    std::vector<std::set<int32_t>> occurred(kTexts);
    for (int step = 0; step < 4; ++step) {
      const std::vector<int32_t> texts = {2, -1, 0, 1, -1, 0, 0};  // several rows of a text
      std::vector<float> penalties;
      for (size_t r = 0; r < texts.size(); ++r) penalties.push_back(0.5f + static_cast<float>(below(8)) * 0.25f);
      std::vector<int32_t> new_ids, new_texts;
      for (int i = 0; i < 40 * (step % 3); ++i) {
        new_ids.push_back(below(vocab)), new_texts.push_back(below(kTexts));
        occurred[static_cast<size_t>(new_texts.back())].insert(new_ids.back());
      }
      const Tensor wide = random_tensor(random, DType::kF32, {std::ssize(texts), vocab + 3});
      const Tensor before = copy_of(wide), want = copy_of(wide);
      for (size_t r = 0; r < texts.size(); ++r) {
        if (texts[r] < 0) continue;
        float* row = want.data_as<float>() + static_cast<int64_t>(r) * (vocab + 3);
        for (const int32_t id : occurred[static_cast<size_t>(texts[r])]) {
          row[id] = row[id] > 0 ? row[id] / penalties[r] : row[id] * penalties[r];
        }
      }
      ops().penalize_tokens({.logits = wide,
                             .vocab = vocab,
                             .seen = seen,
                             .new_ids = new_ids.empty() ? Tensor() : ids_of(new_ids),
                             .new_texts = new_ids.empty() ? Tensor() : ids_of(new_texts),
                             .texts = ids_of(texts),
                             .penalties = numbers_of(penalties)},
                            {});
      EXPECT_TRUE(bit_equal(wide, want)) << vocab << " ids, step " << step;
      EXPECT_EQ(static_cast<bool>(bit_equal(wide, before)), step == 0) << vocab << " ids, step " << step;
    }
  }
}

HR_INSTANTIATE_KERNEL_SETS(PenalizeTokens);

}  // namespace
}  // namespace headrace::testing_support
