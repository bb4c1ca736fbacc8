// take_tokens of every kernel set against a plain loop.
#include <gtest/gtest.h>

#include <vector>

#include "ops/host_tensors.h"
#include "ops/kernel_sets.h"
#include "support/all_close.h"
#include "support/random.h"
#include "support/refusal.h"

namespace headrace::testing_support {
namespace {

class TakeTokens : public KernelSetTest {};

TEST_P(TakeTokens, TakesTheTokensThatFromNamesAndKeepsOtherIds) {
  for (const int64_t count : {1, 127, 128, 129, 5000}) {
    Random random(static_cast<uint64_t>(count));
    const int64_t tokens = 1 + random.below(300);
    std::vector<int32_t> ids, chosen, from, want;
    for (int64_t i = 0; i < tokens; ++i) chosen.push_back(static_cast<int32_t>(random.below(1000)));
    for (int64_t i = 0; i < count; ++i) {
      ids.push_back(static_cast<int32_t>(2000 + i));
      from.push_back(static_cast<int32_t>(random.below(2 * tokens) - tokens));
      want.push_back(from.back() < 0 ? ids.back() : chosen[static_cast<size_t>(from.back())]);
    }
    const Tensor got = ids_of(ids);
    ops().take_tokens({.ids = got, .tokens = ids_of(chosen), .from = ids_of(from)}, {});
    EXPECT_TRUE(bit_equal(got, ids_of(want))) << count;
  }
}

TEST_P(TakeTokens, WithoutTokensNothingChanges) {
  const Tensor ids = ids_of({7, 8});
  ops().take_tokens({.ids = ids, .tokens = ids_of({}), .from = ids_of({-1, -5})}, {});
  EXPECT_TRUE(bit_equal(ids, ids_of({7, 8})));
  EXPECT_NO_THROW(ops().take_tokens({.ids = ids_of({}), .tokens = ids_of({1}), .from = ids_of({})}, {}));
}

TEST_P(TakeTokens, RefusesOtherShapesAndTypes) {
  const Tensor two = ids_of({1, 2}), three = ids_of({1, 2, 3}), floats = numbers_of({1, 2});
  const auto sentence = [&](const TakeTokensArgs& args) {
    const Refusal refusal = refusal_of([&] { ops().take_tokens(args, {}); });
    EXPECT_EQ(refusal.code, ErrorCode::kInvalidArgument);
    return refusal.sentence;
  };
  EXPECT_EQ(sentence({.ids = two.view().reshape({1, 2}), .tokens = three, .from = two}),
            "take_tokens: ids: shape [1, 2] has 2 dimensions, expected 1");
  EXPECT_EQ(sentence({.ids = two, .tokens = three, .from = three}), "take_tokens: from: shape is [3], expected [2]");
  EXPECT_EQ(sentence({.ids = two, .tokens = floats, .from = two}),
            "take_tokens: tokens: dtype is float32, expected int32");
}

HR_INSTANTIATE_KERNEL_SETS(TakeTokens);

}  // namespace
}  // namespace headrace::testing_support
