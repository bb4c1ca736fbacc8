// Which sizes are recorded, and what stands in the rows that fill a batch up to one.
#include "headrace/engine/batch_padding.h"

#include <gtest/gtest.h>

namespace headrace {
namespace {

using Sizes = std::vector<int32_t>;

TEST(CaptureSizes, AlwaysHoldTheLargestBatch) {
  EXPECT_EQ(capture_sizes(0), Sizes());
  EXPECT_EQ(capture_sizes(1), Sizes({1}));
  EXPECT_EQ(capture_sizes(3), Sizes({1, 2, 3}));
  EXPECT_EQ(capture_sizes(16), Sizes({1, 2, 4, 8, 12, 16}));
  EXPECT_EQ(capture_sizes(33), Sizes({1, 2, 4, 8, 12, 16, 24, 32, 33}));
}

// Three requests at lengths 5, 6 and 7, which have states in slots 4, 5 and 6.
struct Decoding {
  std::vector<int32_t> ids = {11, 12, 13}, positions = {4, 5, 6};
  std::vector<int64_t> slots = {100, 200, 300};
  ForwardBatch batch{.mode = ForwardMode::kDecode};
  Decoding() {
    batch.input_ids = TensorView(ids.data(), DType::kI32, {3});
    batch.positions = TensorView(positions.data(), DType::kI32, {3});
    batch.attn.write_slots = TensorView(slots.data(), DType::kI64, {3});
    batch.logits_rows = {0, 1, 2};
    for (int32_t i = 0; i < 3; ++i) {
      batch.attn.spans.push_back({.q_off = i, .ctx_len = 4 + i, .phys0 = 4 + i, .page_row = i + 1});
      batch.attn.state_slots.push_back({.read = 4 + i, .write = 4 + i});
    }
  }
};

TEST(BatchPadding, W02_PaddedRowsAreNotStoredAndHaveNoState) {
  const Decoding three;
  BatchPadding padding(BatchPadding::States::kRecurrent);
  const ForwardBatch& filled = padding.fill(three.batch, 8);
  ASSERT_EQ(filled.batch_size(), 8);
  ASSERT_EQ(filled.num_tokens(), 8);
  ASSERT_EQ(filled.attn.state_slots.size(), 8u);
  filled.attn.validate(0);
  const auto slots = filled.attn.write_slots.as<const int64_t, 1>("slots");
  for (int32_t i = 0; i < 8; ++i) {
    const StateSlots& states = filled.attn.state_slots[static_cast<size_t>(i)];
    const KeySpan& span = filled.attn.spans[static_cast<size_t>(i)];
    EXPECT_EQ(slots(i), i < 3 ? three.slots[static_cast<size_t>(i)] : kDoNotStore);
    EXPECT_EQ(states.read, i < 3 ? 4 + i : kNoState);
    EXPECT_EQ(states.write, i < 3 ? 4 + i : kNoState);
    EXPECT_EQ(span.seq_len(), i < 3 ? 5 + i : 1);  // never 0: it would divide
    EXPECT_EQ(span.q_off, i);
    EXPECT_EQ(filled.logits_rows[static_cast<size_t>(i)], i);
  }
}

// The order in which requests leave must not bring a former row back into the padding.
TEST(BatchPadding, NothingStaysOfALargerBatchBefore) {
  const Decoding three;
  BatchPadding padding(BatchPadding::States::kRecurrent);
  padding.fill(three.batch, 4);
  Decoding one;
  one.batch.attn.spans.resize(1), one.batch.attn.state_slots.resize(1), one.batch.logits_rows.resize(1);
  const ForwardBatch& filled = padding.fill(one.batch, 4);
  for (int64_t i = 1; i < 4; ++i) {
    EXPECT_EQ(static_cast<const int64_t*>(filled.attn.write_slots.data())[i], kDoNotStore);
    EXPECT_EQ(static_cast<const int32_t*>(filled.input_ids.data())[i], 0);
    EXPECT_EQ(filled.attn.state_slots[static_cast<size_t>(i)].write, kNoState);
  }
}

TEST(BatchPadding, AFullBatchIsLeftAsItIs) {
  const Decoding three;
  BatchPadding padding(BatchPadding::States::kNone);
  EXPECT_EQ(padding.fill(three.batch, 3).input_ids.data(), three.ids.data());
}

TEST(BatchPadding, RefusesWhatDoesNotFit) {
  Decoding three;
  BatchPadding padding(BatchPadding::States::kRecurrent);
  EXPECT_THROW(padding.fill(three.batch, 2), Error);
  three.batch.attn.spans.back().q_len = 2;
  EXPECT_THROW(padding.fill(three.batch, 8), Error);
}

}  // namespace
}  // namespace headrace
