// Strictness for whole models: a request's logits have the same bits whatever else is in the batch, wherever it stands
// there, and however its prompt is cut.
#include <gtest/gtest.h>

#include "engine/golden_batches.h"
#include "headrace/kernels/cpu/dispatch.h"
#include "support/all_close.h"

namespace headrace::testing_support {
namespace {

using Share = GoldenBatches::Share;
constexpr int32_t kLength = 77;

class BatchComposition : public testing::TestWithParam<std::string> {
 protected:
  static GoldenBatches batches(const OpSet& ops, DType dtype) {
    return {golden_folder(GetParam()), ops, dtype, {.threads = 2, .determinism = Determinism::kStrict}};
  }
};

// The sequence under test is the same in each; where it stands, what stands beside it and the cuts differ.
using Schedule = std::vector<std::vector<Share>>;

// Sequence 0 is the one; 1, 2 and 3 are company.
const std::vector<Schedule> kSchedules = {
    // A prompt before it, one behind it, then a decoding one between.
    {{{1, 40}, {0, kLength}, {2, 5}}},
    // Odd chunks at changing places, company in prefill and in decode.
    {{{1, 13}, {0, 7}},
     {{0, 13}, {1, 1}, {2, 30}},
     {{1, 1}, {2, 1}, {0, 1}},
     {{2, 1}, {0, 29}, {3, 64}},
     {{0, kLength}}},
    // Prefill, then token by token beside three decoding ones and a prompt that is cut.
    {{{0, 60}, {1, 3}, {2, 1}},
     {{1, 1}, {2, 1}, {0, 1}, {3, 1}},
     {{3, 33}, {0, 1}},
     {{0, 1}, {1, 1}},
     {{2, 17}, {0, kLength}}},
};

TEST_P(BatchComposition, StrictLogitsDoNotDependOnWhatElseRunsOrOnTheCut) {
  for (const cpu::KernelSet& set : cpu::kernel_sets()) {
    if (!set.runs_here()) continue;
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      GoldenBatches alone = batches(*set.ops, dtype);
      alone.add(7, kLength);
      alone.step({{0, kLength}});
      for (size_t i = 0; i < kSchedules.size(); ++i) {
        SCOPED_TRACE(str(set.ops->name, " ", name_of(dtype), ", schedule ", i));
        GoldenBatches together = batches(*set.ops, dtype);
        for (const uint64_t seed : {7, 100, 101, 102}) together.add(seed, kLength);
        for (const std::vector<Share>& step : kSchedules[i]) together.step(step);
        ASSERT_EQ(together.left(0), 0);
        EXPECT_TRUE(bit_equal(together.logits(0), alone.logits(0)));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, BatchComposition, testing::ValuesIn(golden_families()),
                         [](const auto& family) { return family.param; });

}  // namespace
}  // namespace headrace::testing_support
