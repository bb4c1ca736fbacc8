// bias_tokens of every kernel set against a plain loop in double.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "ops/host_tensors.h"
#include "ops/kernel_sets.h"
#include "support/all_close.h"
#include "support/random.h"
#include "support/refusal.h"

namespace headrace::testing_support {
namespace {

class BiasTokens : public KernelSetTest {};

TEST_P(BiasTokens, AddsEachBiasToItsLogit) {
  for (const int64_t vocab : {1, 700, 151936}) {
    Random random(static_cast<uint64_t>(vocab));
    const Tensor memory = random_tensor(random, DType::kF32, {5, vocab + 3}), want = copy_of(memory);
    std::vector<int32_t> rows, ids;
    std::vector<float> biases;
    for (const int32_t row : {3, 0, 4}) {
      for (int64_t id = random.below(3); id < vocab; id += 1 + random.below(vocab / 100 + 1)) {
        rows.push_back(row), ids.push_back(static_cast<int32_t>(id));
        biases.push_back(static_cast<float>(10 * random.normal()));
        float& logit = want.data_as<float>()[row * (vocab + 3) + 1 + id];
        logit = static_cast<float>(static_cast<double>(logit) + static_cast<double>(biases.back()));
      }
    }
    ops().bias_tokens({.logits = memory.view().narrow(1, 1, 1 + vocab),  // rows are strided
                       .rows = ids_of(rows),
                       .ids = ids_of(ids),
                       .biases = numbers_of(biases)},
                      {});
    EXPECT_TRUE(bit_equal(memory, want)) << vocab;
  }
}

TEST_P(BiasTokens, AMinusInfinityForbidsAllLogitsButNaNAndPlusInfinity) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor logits = numbers_of({1, -inf, 1e38f, nan, inf, -inf, 2, nan});
  ops().bias_tokens({.logits = logits.view().reshape({1, 8}),
                     .rows = ids_of({0, 0, 0, 0, 0, 0, 0}),
                     .ids = ids_of({0, 1, 2, 3, 4, 5, 7}),
                     .biases = numbers_of({-inf, -inf, -inf, -inf, -inf, 5, 0})},
                    {});
  const auto* got = logits.data_as<float>();
  for (const int id : {0, 1, 2, 5}) EXPECT_EQ(got[id], -inf) << id;
  for (const int id : {3, 4, 7}) EXPECT_TRUE(std::isnan(got[id])) << id;
  EXPECT_EQ(got[6], 2);
}

TEST_P(BiasTokens, WithoutBiasesNothingChanges) {
  const Tensor logits = numbers_of({1, 2, 3, 4});
  ops().bias_tokens(
      {.logits = logits.view().reshape({2, 2}), .rows = ids_of({}), .ids = ids_of({}), .biases = numbers_of({})}, {});
  EXPECT_TRUE(bit_equal(logits, numbers_of({1, 2, 3, 4})));
}

TEST_P(BiasTokens, RefusesOtherShapesAndTypes) {
  const Tensor logits = Tensor::zeros(DType::kF32, {2, 4}), one = ids_of({1});
  const Tensor bias = numbers_of({1});
  const auto sentence = [&](const BiasTokensArgs& args) {
    const Refusal refusal = refusal_of([&] { ops().bias_tokens(args, {}); });
    EXPECT_EQ(refusal.code, ErrorCode::kInvalidArgument);
    return refusal.sentence;
  };
  EXPECT_EQ(sentence({.logits = one, .rows = one, .ids = one, .biases = bias}),
            "bias_tokens: logits: shape [1] has 1 dimensions, expected 2");
  EXPECT_EQ(sentence({.logits = one.view().reshape({1, 1}), .rows = one, .ids = one, .biases = bias}),
            "bias_tokens: logits: dtype is int32, expected float32");
  EXPECT_EQ(sentence({.logits = logits, .rows = ids_of({0, 1}), .ids = one, .biases = bias}),
            "bias_tokens: rows: shape is [2], expected [1]");
  EXPECT_EQ(sentence({.logits = logits, .rows = one, .ids = bias, .biases = bias}),
            "bias_tokens: ids: dtype is float32, expected int32");
  EXPECT_EQ(sentence({.logits = logits, .rows = one, .ids = one, .biases = numbers_of({1, 2})}),
            "bias_tokens: biases: shape is [2], expected [1]");
}

HR_INSTANTIATE_KERNEL_SETS(BiasTokens);

}  // namespace
}  // namespace headrace::testing_support
