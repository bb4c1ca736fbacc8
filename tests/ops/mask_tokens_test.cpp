// mask_tokens of every kernel set against a plain loop over bits.
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "ops/host_tensors.h"
#include "ops/kernel_sets.h"
#include "support/all_close.h"
#include "support/random.h"
#include "support/refusal.h"

namespace headrace::testing_support {
namespace {

class MaskTokens : public KernelSetTest {};

// Random words, each bit of which is set `eighths` times in eight.
Tensor random_bits(Random& random, const Shape& shape, int eighths) {
  Tensor bits = Tensor::zeros(DType::kI32, shape);
  for (int64_t i = 0; i < bits.numel() * 32; ++i) {
    if (random.below(8) < eighths) bits.data_as<int32_t>()[i / 32] |= static_cast<int32_t>(1u << i % 32);
  }
  return bits;
}

// Rows are strided, and masks have a further word. Some logits are NaN or infinite.
TEST_P(MaskTokens, ForbidsExactlyTheIdsWhoseBitIsZero) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const int32_t vocab : {1, 31, 32, 33, 700, 8191, 8192, 8193, 20000, 151936}) {
    for (const int eighths : {0, 1, 7, 8}) {
      Random random(static_cast<uint64_t>(vocab * 8 + eighths));
      const int64_t width = vocab + 6, words = MaskTokensArgs::words_of(vocab) + 1;
      const Tensor memory = random_tensor(random, DType::kF32, {6, width});
      for (int64_t i = 0; i < memory.numel(); i += 3) {
        const float odd[] = {kInf, -kInf, std::numeric_limits<float>::quiet_NaN(), -0.0f};
        memory.data_as<float>()[i] = odd[random.below(4)];
      }
      const Tensor want = copy_of(memory), bits = random_bits(random, {3, words}, eighths);
      const std::vector<int32_t> rows = {5, 0, 2};
      for (size_t i = 0; i < rows.size(); ++i) {
        for (int32_t id = 0; id < vocab; ++id) {
          const auto word = static_cast<uint32_t>(bits.data_as<int32_t>()[static_cast<int64_t>(i) * words + id / 32]);
          if ((word >> id % 32 & 1) == 0) want.data_as<float>()[rows[i] * width + 1 + id] = -kInf;
        }
      }
      ops().mask_tokens(
          {.logits = memory.view().narrow(1, 1, width), .vocab = vocab, .rows = ids_of(rows), .bits = bits}, {});
      EXPECT_TRUE(bit_equal(memory, want)) << vocab << " ids, " << eighths << " eighths";
    }
  }
}

TEST_P(MaskTokens, WithoutMasksNothingChanges) {
  const Tensor logits = numbers_of({1, 2, 3, 4});
  ops().mask_tokens(
      {.logits = logits.view().reshape({2, 2}), .vocab = 2, .rows = ids_of({}), .bits = Tensor(DType::kI32, {0, 1})},
      {});
  EXPECT_TRUE(bit_equal(logits, numbers_of({1, 2, 3, 4})));
}

TEST_P(MaskTokens, RefusesOtherShapesAndTypes) {
  const Tensor logits = Tensor::zeros(DType::kF32, {2, 33}), row = ids_of({1});
  const Tensor bits = Tensor::zeros(DType::kI32, {1, 2}), floats = Tensor::zeros(DType::kF32, {1, 2});
  const auto sentence = [&](const MaskTokensArgs& args) {
    const Refusal refusal = refusal_of([&] { ops().mask_tokens(args, {}); });
    EXPECT_EQ(refusal.code, ErrorCode::kInvalidArgument);
    return refusal.sentence;
  };
  EXPECT_EQ(sentence({.logits = bits, .vocab = 2, .rows = row, .bits = bits}),
            "mask_tokens: logits: dtype is int32, expected float32");
  for (const int32_t vocab : {0, 34}) {
    EXPECT_EQ(sentence({.logits = logits, .vocab = vocab, .rows = row, .bits = bits}),
              "mask_tokens: vocab is " + std::to_string(vocab) + ", expected 1 to 33");
  }
  EXPECT_EQ(sentence({.logits = logits, .vocab = 33, .rows = row, .bits = bits.view().narrow(1, 0, 1)}),
            "mask_tokens: bits is [1, 1], expected rows of 2 or more");
  EXPECT_EQ(sentence({.logits = logits, .vocab = 33, .rows = row, .bits = floats}),
            "mask_tokens: bits: dtype is float32, expected int32");
  EXPECT_EQ(sentence({.logits = logits, .vocab = 33, .rows = ids_of({0, 1}), .bits = bits}),
            "mask_tokens: rows: shape is [2], expected [1]");
}

HR_INSTANTIATE_KERNEL_SETS(MaskTokens);

}  // namespace
}  // namespace headrace::testing_support
