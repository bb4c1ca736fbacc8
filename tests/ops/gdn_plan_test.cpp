// How Gated DeltaNet's kernels on a device divide their work.
#include "headrace/ops/cuda/gdn/gdn_plan.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <vector>

namespace headrace::cuda {
namespace {

constexpr int kSMs = 132;

GDNChunks chunks(int64_t requests, int64_t heads, int64_t longest, int64_t room) {
  return {.requests = requests,
          .heads = heads,
          .longest = longest,
          .needed = requests * (longest + 1),
          .room = room,
          .room_for_passes = room - requests,
          .num_sms = kSMs,
          .lengths_known = true};
}

std::vector<int64_t> counts(const GDNPasses& passes) {
  std::vector<int64_t> all;
  for (GDNPass pass = passes.first(); !passes.behind(pass); pass = passes.after(pass)) all.push_back(pass.count);
  return all;
}

TEST(GDNPasses, AreOneWhereAllChunksHaveRoomAndAllMultiprocessorsWork) {
  const GDNPasses passes(chunks(16, 32, 32, 4000));
  EXPECT_TRUE(passes.is_one());
  EXPECT_FALSE(passes.overlap());
  EXPECT_EQ(passes.places(), 16 * 33);
}

TEST(GDNPasses, OfOneLongRequestGrowAndOverlap) {
  const GDNPasses passes(chunks(1, 32, 512, 4000));  // 32k tokens: 64 halves of heads leave 68 multiprocessors
  EXPECT_FALSE(passes.is_one());
  EXPECT_TRUE(passes.overlap());
  EXPECT_EQ(counts(passes), (std::vector<int64_t>{32, 51, 81, 128, 128, 92}));
  EXPECT_TRUE(GDNPasses(chunks(1, 32, 127, 4000)).is_one()) << "too short to gain";
  EXPECT_TRUE(GDNPasses(chunks(2, 32, 512, 4000)).is_one()) << "no multiprocessors are left";
}

TEST(GDNPasses, OfTheSameLengthAreMadeWhereRoomIsShort) {
  const GDNPasses passes(chunks(16, 32, 128, 700));
  EXPECT_FALSE(passes.overlap());
  EXPECT_EQ(counts(passes), (std::vector<int64_t>{32, 32, 32, 32})) << "684 places are 42 chunks of each";
}

TEST(GDNPasses, NeedLengthsThatTheHostKnows) {
  GDNChunks long_one = chunks(1, 32, 512, 4000), too_long = chunks(16, 32, 512, 700);
  EXPECT_TRUE(GDNPasses::serve(too_long));
  long_one.lengths_known = too_long.lengths_known = false;
  EXPECT_TRUE(GDNPasses(long_one).is_one());
  EXPECT_FALSE(GDNPasses::serve(too_long));
}

RC_GTEST_PROP(GDNPasses, CoverEveryChunkOnceAndFitTheirBuffers, ()) {
  GDNChunks c = chunks(*rc::gen::inRange<int64_t>(1, 70), *rc::gen::element<int64_t>(1, 4, 16, 32, 64),
                       *rc::gen::inRange<int64_t>(1, 3000), *rc::gen::inRange<int64_t>(1, 6000));
  c.lengths_known = *rc::gen::arbitrary<bool>();
  RC_PRE(GDNPasses::serve(c));
  const GDNPasses passes(c);
  if (passes.is_one()) {
    RC_ASSERT(passes.places() == c.needed && c.needed <= c.room);
    return;
  }
  RC_ASSERT(c.lengths_known);
  RC_ASSERT(passes.num_buffers() * passes.places() <= c.room_for_passes);
  int64_t covered = 0;
  int buffer = 1;
  for (GDNPass pass = passes.first(); !passes.behind(pass); pass = passes.after(pass)) {
    RC_ASSERT(pass.first == covered && pass.count >= 1);
    RC_ASSERT(pass.count * c.requests <= passes.places());
    RC_ASSERT(!passes.overlap() || pass.buffer != buffer);  // the pass before still reads the other one
    covered += pass.count, buffer = pass.buffer;
  }
  RC_ASSERT(covered == c.longest);
}

TEST(GDNStepBlocks, FillTheDeviceAndNoMore) {
  EXPECT_EQ(gdn_step_blocks(16, 1, kSMs), 4);
  EXPECT_EQ(gdn_step_blocks(64, 1, kSMs), 2);
  EXPECT_EQ(gdn_step_blocks(128, 1, kSMs), 1);
  EXPECT_EQ(gdn_step_blocks(32, 2, kSMs), 4);
  EXPECT_EQ(gdn_step_blocks(32, 4, kSMs), 2) << "a cluster has eight blocks";
  EXPECT_EQ(gdn_step_blocks(8, 8, kSMs), 1);
}

TEST(GDNRecurrenceRows, AreFewWhileEveryBlockHasAMultiprocessor) {
  EXPECT_EQ(gdn_recurrence_rows(8, 128, 8, kSMs), 1);   // 128 blocks
  EXPECT_EQ(gdn_recurrence_rows(9, 128, 8, kSMs), 2);   // 144, or 72
  EXPECT_EQ(gdn_recurrence_rows(16, 128, 8, kSMs), 2);  // 128 of two rows a lane
  EXPECT_EQ(gdn_recurrence_rows(17, 128, 8, kSMs), 4);
}

}  // namespace
}  // namespace headrace::cuda
