// Whose the free memory of a device is while graphs are recorded, and when they are gone.
#include "headrace/ops/cuda/runtime/caching_allocator.h"

#include <gtest/gtest.h>

namespace headrace::cuda {
namespace {

char memory[4];
void* const kA = &memory[0];
void* const kB = &memory[1];
void* const kC = &memory[2];

// What the driver gives when a block is asked for that is not free.
void* taken(CachingAllocator& blocks, size_t size, void* from_driver) {
  if (void* block = blocks.take(size); block != nullptr) return block;
  blocks.add(from_driver, size);
  return from_driver;
}

// One graph, which wrote to kA, and nobody holds it.
void record(CachingAllocator& blocks, size_t size) {
  blocks.begin_recording();
  EXPECT_EQ(taken(blocks, size, kA), kA);
  blocks.put(kA, size);
  blocks.end_recording();
}

TEST(CachingAllocator, WhatAGraphWritesToGoesToOtherGraphsAlone) {
  CachingAllocator blocks;
  record(blocks, 1024);
  EXPECT_EQ(taken(blocks, 1024, kB), kB);
  EXPECT_TRUE(blocks.drop_free().empty());
  blocks.begin_recording();
  EXPECT_EQ(taken(blocks, 512, kC), kA) << "smaller ones share it";
}

TEST(CachingAllocator, ItServesEverythingAgainWhenTheLastGraphIsGone) {
  CachingAllocator blocks;
  record(blocks, 1024);
  record(blocks, 512);
  blocks.graph_gone();
  EXPECT_TRUE(blocks.drop_free().empty()) << "one of two is left";
  blocks.graph_gone();
  EXPECT_EQ(taken(blocks, 1024, kB), kA) << "at its own size, whatever it was used for last";
  blocks.put(kA, 1024);
  EXPECT_EQ(blocks.drop_free(), std::vector<void*>{kA});
  EXPECT_TRUE(blocks.drop_of_graphs().empty()) << "freed twice";
}

TEST(CachingAllocator, SoItDoesBehindARecordingThatFailedWhileItWasHeld) {
  CachingAllocator blocks;
  blocks.begin_recording();
  EXPECT_EQ(taken(blocks, 2048, kA), kA);
  blocks.end_recording();
  blocks.graph_gone();
  blocks.put(kA, 512);  // a smaller one's
  EXPECT_EQ(taken(blocks, 2048, kB), kA);
  EXPECT_TRUE(blocks.drop_of_graphs().empty());
}

TEST(CachingAllocator, ARecordingThatFindsNoMemoryTakesWhatItsWarmUpHasFreed) {
  CachingAllocator blocks;
  EXPECT_EQ(taken(blocks, 1024, kA), kA);
  EXPECT_EQ(taken(blocks, 4096, kB), kB);
  blocks.put(kA, 1024), blocks.put(kB, 4096);
  blocks.begin_recording();
  EXPECT_EQ(blocks.take(1024), nullptr) << "as long as the driver has some";
  EXPECT_EQ(blocks.take_spare(1024), kA);
  EXPECT_EQ(blocks.take_spare(1024), kB) << "a larger one";
  EXPECT_EQ(blocks.take_spare(1024), nullptr);
  blocks.put(kB, 1024);
  blocks.end_recording();
  EXPECT_EQ(blocks.take(1024), nullptr) << "it is the graph's now";
  EXPECT_EQ(blocks.take(4096), nullptr);
  blocks.graph_gone();
  EXPECT_EQ(blocks.take(4096), kB) << "as large as it is";
}

}  // namespace
}  // namespace headrace::cuda
