// KV splits of the sm80 attention kernel.
#pragma once
#include <cstdint>

#include "headrace/ops/op_context.h"

namespace headrace::cuda {

constexpr int kFixedSplitKeys = 1024;  // of a fixed KV split (batch-invariant mode)
constexpr int kLeastSplitTiles = 4;    // least KV tiles of a split: shorter requests are not split
constexpr int64_t kMostMmaSplits = 128, kMostMmaFixedSplits = 65535;  // default mode; limit of a grid dimension

struct MmaTask {
  int64_t blocks = 0, room = 0;  // CTAs without splits; CTAs resident at once
  int max_keys = 0, tile_keys = 64;
  int64_t fits = 0;  // splits of every row that fit the scratch memory
  Determinism determinism = Determinism::kFast;
};

// Returns the KV splits per row. Default mode: enough to fill the device, limited by keys and scratch memory.
// Batch-invariant mode: one per fixed KV split if CTAs are few. 1: rows are not split.
constexpr int mma_splits(const MmaTask& task) {
  if (task.blocks * 2 > task.room) return 1;
  const int64_t tiles = (int64_t{task.max_keys} + task.tile_keys - 1) / task.tile_keys;
  if (task.determinism == Determinism::kStrict) {
    const int64_t groups = tiles / (kFixedSplitKeys / task.tile_keys) + 1;  // the most that a row's tiles can touch
    return groups > task.fits || groups > kMostMmaFixedSplits ? 1 : static_cast<int>(groups);
  }
  int64_t parts = (tiles + kLeastSplitTiles - 1) / kLeastSplitTiles;
  for (const int64_t most : {task.room / task.blocks, task.fits, kMostMmaSplits}) parts = most < parts ? most : parts;
  return parts < 2 ? 1 : static_cast<int>(parts);
}

}  // namespace headrace::cuda
