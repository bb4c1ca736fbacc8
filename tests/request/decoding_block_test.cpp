#include "headrace/request/decoding_block.h"

#include <gtest/gtest.h>

#include "headrace/core/error.h"

namespace headrace {
namespace {

TEST(DecodingBlock, StartsWithItsEditablePositionsMasked) {
  const DecodingBlock block(8, 12, 10, 100);
  EXPECT_EQ(block.masked_positions(), (std::vector<int32_t>{10, 11}));
  EXPECT_EQ(block.num_masked(), 2);
  EXPECT_EQ(block.progress(), 0.5f);
  EXPECT_EQ(block.decided_end(), 10);
  EXPECT_TRUE(block.is_active());
}

TEST(DecodingBlock, DecidesInAnyOrderAndCommitsWhenComplete) {
  DecodingBlock block(8, 12, 9, 12);
  block.decide(11);
  EXPECT_EQ(block.decided_end(), 9);
  EXPECT_THROW(block.commit(), Error);
  block.decide(9);
  block.decide(10);
  EXPECT_EQ(block.decided_end(), 12);
  block.commit();
  EXPECT_EQ(block.state(), DecodingBlock::State::kToCache);
  EXPECT_THROW(block.decide(10), Error);
}

TEST(DecodingBlock, NeverWritesThePromptOrWhatIsBehindTheValidEnd) {
  DecodingBlock block(8, 12, 9, 11);
  EXPECT_THROW(block.decide(8), Error);
  EXPECT_THROW(block.decide(11), Error);
  EXPECT_THROW(block.remask(8), Error);
}

TEST(DecodingBlock, IsCompleteWithoutThePositionsBehindItsValidEnd) {
  DecodingBlock block(0, 4, 1, 4);
  block.decide(1);
  EXPECT_FALSE(block.complete());
  block.clip(2);
  EXPECT_TRUE(block.complete());
  EXPECT_EQ(block.progress(), 1.0f);
  block.clip(4);  // a clipped block never grows again
  EXPECT_EQ(block.valid_end(), 2);
}

TEST(DecodingBlock, RemaskedPositionsCountAgain) {
  DecodingBlock block(0, 4, 0, 4);
  for (int32_t p = 0; p < 4; ++p) block.decide(p);
  block.remask(1);
  EXPECT_EQ(block.num_masked(), 1);
  EXPECT_EQ(block.decided_end(), 1);
}

TEST(DecodingBlock, APromptIsReadyToBeStored) {
  const DecodingBlock prompt = DecodingBlock::of_prompt(0, 8);
  EXPECT_TRUE(prompt.is_prompt());
  EXPECT_FALSE(prompt.is_active());
  EXPECT_TRUE(prompt.masked_positions().empty());
}

}  // namespace
}  // namespace headrace
