// How the work of a mixture of experts is cut on a device.
#include "headrace/ops/cuda/moe/moe_plan.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace headrace::cuda {
namespace {

TEST(ExpertTileRows, GrowWithTheRowsOfAnExpert) {
  EXPECT_EQ(expert_tile_rows(ExpertKernel::kSm90, 47 * 128, 128), kFewRowsSm90);
  EXPECT_EQ(expert_tile_rows(ExpertKernel::kSm90, 48 * 128, 128), kManyRowsSm90);
  EXPECT_EQ(expert_tile_rows(ExpertKernel::kTensorCores, 31 * 128, 128), kFewTileRows);
  EXPECT_EQ(expert_tile_rows(ExpertKernel::kTensorCores, 32 * 128, 128), kManyTileRows);
  EXPECT_EQ(expert_tile_rows(ExpertKernel::kPlain, 1 << 20, 128), kFewTileRows);
}

// Of Qwen3-30B-A3B's layer in bfloat16.
ExpertWork work(int64_t tokens, int64_t room) {
  return {.tokens = tokens,
          .chosen = 8,
          .channels = 2048,
          .intermediate = 768,
          .element_bytes = 2,
          .sorting_bytes = 16,
          .room = room,
          .sm90 = true};
}

TEST(ExpertChunk, IsWholeWhereThereIsRoom) {
  const ExpertChunk chunk = choose_expert_chunk(work(4096, int64_t{319} << 20));
  EXPECT_EQ(chunk.tokens, 4096);
  EXPECT_EQ(chunk.channels, 2048);
}

TEST(ExpertChunk, HasFewerChannelsBeforeFewerTokens) {
  const ExpertChunk halves = choose_expert_chunk(work(8192, int64_t{319} << 20));
  EXPECT_EQ(halves.tokens, 8192);
  EXPECT_EQ(halves.channels, 1024);
  const ExpertChunk both = choose_expert_chunk(work(65536, int64_t{319} << 20));
  EXPECT_EQ(both.channels, kDownColumnsSm90) << "whole tiles";
  EXPECT_LT(both.tokens, 65536);
  ExpertWork other = work(8192, int64_t{319} << 20);
  other.sm90 = false;
  EXPECT_EQ(choose_expert_chunk(other).channels, 2048) << "the other kernels make all channels at once";
}

TEST(ExpertChunk, IsEmptyWhereATokenHasNoRoom) { EXPECT_EQ(choose_expert_chunk(work(4, 1000)).tokens, 0); }

RC_GTEST_PROP(ExpertChunk, FitsTheRoomTheGridAndTheTiles, ()) {
  ExpertWork w = work(*rc::gen::inRange<int64_t>(0, 200000), *rc::gen::inRange<int64_t>(1 << 10, int64_t{1} << 29));
  w.chosen = *rc::gen::inRange<int64_t>(1, 16), w.sm90 = *rc::gen::arbitrary<bool>();
  w.channels = 64 * *rc::gen::inRange<int64_t>(1, 128), w.intermediate = 8 * *rc::gen::inRange<int64_t>(1, 500);
  const ExpertChunk chunk = choose_expert_chunk(w);
  RC_ASSERT(w.channels % chunk.channels == 0);
  RC_ASSERT(chunk.channels == w.channels || (w.sm90 && chunk.channels % kDownColumnsSm90 == 0));
  if (chunk.tokens == 0) {
    RC_ASSERT(w.tokens == 0 || w.bytes_per_token(chunk.channels) > w.room);
    return;
  }
  RC_ASSERT(chunk.tokens * w.bytes_per_token(chunk.channels) <= w.room);
  RC_ASSERT(chunk.tokens * (w.sm90 ? 1 : w.chosen) <= 65535);
}

}  // namespace
}  // namespace headrace::cuda
