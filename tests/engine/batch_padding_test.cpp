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
  BatchPadding padding(BatchPadding::States::kRecurrent, 1);
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
  BatchPadding padding(BatchPadding::States::kRecurrent, 1);
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

TEST(BatchPadding, PaddedRowsHaveTheLengthThatTheBackendAsksFor) {
  const Decoding three;
  BatchPadding padding(BatchPadding::States::kNone, 3);
  const ForwardBatch& filled = padding.fill(three.batch, 4);
  EXPECT_EQ(filled.attn.spans[2].seq_len(), 7);
  EXPECT_EQ(filled.attn.spans[3].seq_len(), 3);
}

TEST(BatchPadding, AFullBatchIsLeftAsItIs) {
  const Decoding three;
  BatchPadding padding(BatchPadding::States::kNone, 1);
  EXPECT_EQ(padding.fill(three.batch, 3).input_ids.data(), three.ids.data());
}

TEST(BatchPadding, RefusesWhatDoesNotFit) {
  Decoding three;
  BatchPadding padding(BatchPadding::States::kRecurrent, 1);
  EXPECT_THROW(padding.fill(three.batch, 2), Error);
  three.batch.attn.spans.back().q_len = 2;
  EXPECT_THROW(padding.fill(three.batch, 8), Error);
}

// Two requests in the middle of a block of 4: one stores the block before, the other does not.
struct Denoising {
  std::vector<int32_t> ids, positions;
  std::vector<int64_t> slots;
  ForwardBatch batch{.mode = ForwardMode::kExtend};
  Denoising() {
    for (int32_t i = 0; i < 12; ++i) ids.push_back(i), positions.push_back(i), slots.push_back(i < 4 ? i : kDoNotStore);
    batch.input_ids = TensorView(ids.data(), DType::kI32, {12});
    batch.positions = TensorView(positions.data(), DType::kI32, {12});
    batch.attn.write_slots = TensorView(slots.data(), DType::kI64, {12});
    batch.logits_rows = {4, 6, 7, 9};
    batch.attn.spans = {{.q_off = 0, .q_len = 8, .kind = KeySpan::Kind::kBlock, .block_size = 4},
                        {.q_off = 8, .q_len = 4, .kind = KeySpan::Kind::kBlock, .block_size = 4}};
  }
};

TEST(BatchPadding, W02_RowsPaddedBehindBlocksAreNotStoredAndSeeNothing) {
  const Denoising two;
  BatchPadding padding(BatchPadding::States::kNone, 1);
  const ForwardBatch& filled = padding.fill(two.batch, BatchPadding::Sizes{.spans = 5, .rows = 16, .logits_rows = 8});
  filled.attn.validate(0);
  ASSERT_EQ(filled.batch_size(), 5);
  ASSERT_EQ(filled.num_tokens(), 16);
  EXPECT_EQ(filled.attn.padding_rows, 4);
  EXPECT_EQ(filled.logits_rows, (Sizes{4, 6, 7, 9, 0, 0, 0, 0}));
  const auto slots = filled.attn.write_slots.as<const int64_t, 1>("slots");
  for (int32_t i = 0; i < 16; ++i) EXPECT_EQ(slots(i), i < 4 ? i : kDoNotStore);
  EXPECT_EQ(filled.attn.spans[2].q_len, 0);
  EXPECT_EQ(filled.attn.spans[3].q_len, 0);
  const KeySpan& last = filled.attn.spans[4];
  EXPECT_EQ(last.q_off, 12);
  EXPECT_EQ(last.q_len, 4);
  for (int32_t i = 0; i < 4; ++i) EXPECT_EQ(last.ctx_len + last.new_keys(i), 0);
}

TEST(BatchPadding, W02_RowsPaddedBehindPromptsKeepNoState) {
  Decoding three;
  three.batch.mode = ForwardMode::kMixed;
  BatchPadding padding(BatchPadding::States::kRecurrent, 1);
  const ForwardBatch& filled = padding.fill(three.batch, BatchPadding::Sizes{.spans = 6, .rows = 8, .logits_rows = 4});
  filled.attn.validate(0);
  ASSERT_EQ(filled.attn.state_slots.size(), 6u);
  for (int32_t i = 0; i < 6; ++i) {
    const StateSlots& states = filled.attn.state_slots[static_cast<size_t>(i)];
    EXPECT_EQ(states.read, i < 3 ? 4 + i : kNoState);
    EXPECT_EQ(states.write, i < 3 ? 4 + i : kNoState);
  }
  EXPECT_EQ(filled.attn.spans.back().q_len, 5);
}

TEST(BatchPadding, RefusesBlocksThatLeaveNoRequestForThePadding) {
  const Denoising two;
  BatchPadding padding(BatchPadding::States::kNone, 1);
  EXPECT_THROW(padding.fill(two.batch, BatchPadding::Sizes{.spans = 2, .rows = 16, .logits_rows = 8}), Error);
  EXPECT_THROW(padding.fill(two.batch, BatchPadding::Sizes{.spans = 5, .rows = 8, .logits_rows = 8}), Error);
  EXPECT_THROW(padding.fill(two.batch, BatchPadding::Sizes{.spans = 5, .rows = 16, .logits_rows = 3}), Error);
}

}  // namespace
}  // namespace headrace
