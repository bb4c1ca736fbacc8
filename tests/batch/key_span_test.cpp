// KeySpan against the worked mask examples of block diffusion, and against the origin's own rule by brute force.
#include "headrace/batch/key_span.h"

#include <gtest/gtest.h>

#include <vector>

#include "support/random.h"

namespace headrace {
namespace {

using Kind = KeySpan::Kind;

std::vector<int> cached_of(const KeySpan& s, int32_t row, int32_t window = kNoWindow) {
  std::vector<int> keys;
  for (int32_t j = s.first_cached(row, window); j < s.ctx_len; ++j) {
    if (s.sees_cached(j)) keys.push_back(j);
  }
  return keys;
}

TEST(KeySpan, MultiBlockDecodeSeesItsOwnAndEarlierBlocks) {
  const KeySpan s{.q_len = 8, .ctx_len = 4, .phys0 = 4, .kind = Kind::kBlock, .block_size = 4};
  EXPECT_EQ(s.new_keys(0), 4);
  EXPECT_EQ(s.new_keys(3), 4);
  EXPECT_EQ(s.new_keys(7), 8);
  EXPECT_EQ(cached_of(s, 0), (std::vector{0, 1, 2, 3}));
}

TEST(KeySpan, B11_PrefixFullCountsAbsolutePositions) {
  const KeySpan s{.q_len = 12, .kind = Kind::kPrefixFull, .block_size = 4, .prompt_len = 6, .padded_prompt_len = 8};
  EXPECT_EQ(s.new_keys(0), 6);
  EXPECT_EQ(s.new_keys(5), 6);
  EXPECT_EQ(s.new_keys(6), 8);
  EXPECT_EQ(s.new_keys(8), 12);
}

TEST(KeySpan, CanvasHidesThePaddingOfThePrompt) {
  const KeySpan s{
      .q_len = 8, .ctx_len = 8, .phys0 = 8, .log_shift = 3, .hole_begin = 5, .hole_end = 8, .kind = Kind::kFull};
  EXPECT_EQ(cached_of(s, 2), (std::vector{0, 1, 2, 3, 4}));
  EXPECT_EQ(s.new_keys(2), 8);
  EXPECT_EQ(s.logical(s.phys0 + 2), 7);
}

TEST(KeySpan, CacheOnlyRowsSeeTheWholeCache) {
  const KeySpan s{.q_len = 8, .ctx_len = 64, .phys0 = 40, .kind = Kind::kNone};
  EXPECT_EQ(cached_of(s, 0).size(), 64u);
  EXPECT_EQ(s.new_keys(7), 0);
}

TEST(KeySpan, B10_WindowCountsLogicalPositionsAndTheQueryItself) {
  const KeySpan block{.q_len = 4, .ctx_len = 8, .phys0 = 8, .kind = Kind::kBlock, .block_size = 4};
  EXPECT_EQ(cached_of(block, 0, 4), (std::vector{5, 6, 7}));
  EXPECT_EQ(block.first_new(0, 4), 0);
  KeySpan hole{
      .q_len = 8, .ctx_len = 8, .phys0 = 8, .log_shift = 3, .hole_begin = 5, .hole_end = 8, .kind = Kind::kFull};
  EXPECT_EQ(cached_of(hole, 0, 4), (std::vector{2, 3, 4}));  // row 0 is at logical position 5
  hole.window_from = KeySpan::WindowFrom::kSegment;
  EXPECT_EQ(cached_of(hole, 7, 4), (std::vector{2, 3, 4}));
  EXPECT_EQ(hole.first_new(7, 4), 0);
}

// The origin's rule for one (row, key) pair, written from its tables: b < end of a's block, and so on.
bool origin_sees_new(const KeySpan& s, int32_t i, int32_t j) {
  const int64_t a = int64_t{s.phys0} + i, b = int64_t{s.phys0} + j, block_end = (a / s.block_size + 1) * s.block_size;
  switch (s.kind) {
    case Kind::kCausal: return b <= a;
    case Kind::kBlock: return b < block_end;
    case Kind::kFull: return true;
    case Kind::kPrefixFull:
      return (a < s.prompt_len && b < s.prompt_len) ||
             (s.prompt_len <= a && a < s.padded_prompt_len && b < s.padded_prompt_len) ||
             (a >= s.padded_prompt_len && b < block_end);
    case Kind::kNone: return false;
  }
  return false;
}

TEST(KeySpan, AgreesWithTheOriginsRuleOnRandomPairs) {
  testing_support::Random random(5);
  for (int round = 0; round < 4000; ++round) {
    KeySpan s{.q_len = static_cast<int32_t>(1 + random.below(40)),
              .kind = static_cast<Kind>(random.below(5)),
              .block_size = static_cast<int32_t>(1 + random.below(9))};
    s.ctx_len = s.phys0 = s.kind == Kind::kPrefixFull ? 0 : static_cast<int32_t>(random.below(50));
    s.prompt_len = static_cast<int32_t>(random.below(s.q_len + 1));
    s.padded_prompt_len = (s.prompt_len + s.block_size - 1) / s.block_size * s.block_size;
    const int32_t window = random.below(2) == 0 ? kNoWindow : static_cast<int32_t>(1 + random.below(20));
    for (int32_t i = 0; i < s.q_len; ++i) {
      for (int32_t j = 0; j < s.q_len; ++j) {
        const bool in_window = window == kNoWindow || i - j < window;
        ASSERT_EQ(j >= s.first_new(i, window) && j < s.new_keys(i), origin_sees_new(s, i, j) && in_window)
            << "kind " << static_cast<int>(s.kind) << " row " << i << " key " << j;
      }
      for (int32_t j = 0; j < s.ctx_len; ++j) {
        ASSERT_EQ(j >= s.first_cached(i, window), window == kNoWindow || s.phys0 + i - j < window);
      }
    }
  }
}

TEST(AttentionType, FoldsIntoTheSpan) {
  const KeySpan causal{.q_len = 4, .ctx_len = 9};
  EXPECT_EQ(folded(causal, AttentionType::kDecoder).kind, Kind::kCausal);
  EXPECT_EQ(folded(causal, AttentionType::kDecoderBidirectional).kind, Kind::kFull);
  EXPECT_EQ(folded(causal, AttentionType::kDecoderBidirectional).ctx_len, 9);
  EXPECT_EQ(folded(causal, AttentionType::kEncoderOnly).ctx_len, 0);
  EXPECT_STREQ(name_of(AttentionType::kDecoderBidirectional), "decoder_bidirectional");
}

}  // namespace
}  // namespace headrace
