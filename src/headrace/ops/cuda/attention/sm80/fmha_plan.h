// Into how many parts the attention kernel on mma.sync cuts a row's keys.
#pragma once
#include <cstdint>

#include "headrace/ops/op_context.h"

namespace headrace::cuda {

constexpr int kGroupKeys = 1024;                                // of the groups of strict mode
constexpr int kLeastPartTiles = 4;                              // of keys: shorter requests are not cut
constexpr int64_t kMostMmaParts = 128, kMostMmaGroups = 65535;  // of fast mode, and of a grid

struct MmaTask {
  int64_t blocks = 0, room = 0;  // without parts, and on the device at once
  int max_keys = 0, tile_keys = 64;
  int64_t fits = 0;  // parts of every row that scratch memory holds
  Determinism determinism = Determinism::kFast;
};

// Parts so that the device is full, as far as keys and scratch memory allow; in strict mode a part for each group,
// where blocks are few. 1: rows are not cut.
constexpr int mma_parts(const MmaTask& task) {
  if (task.blocks * 2 > task.room) return 1;
  const int64_t tiles = (int64_t{task.max_keys} + task.tile_keys - 1) / task.tile_keys;
  if (task.determinism == Determinism::kStrict) {
    const int64_t groups = tiles / (kGroupKeys / task.tile_keys) + 1;  // that any tiles of a row can touch
    return groups > task.fits || groups > kMostMmaGroups ? 1 : static_cast<int>(groups);
  }
  int64_t parts = (tiles + kLeastPartTiles - 1) / kLeastPartTiles;
  for (const int64_t most : {task.room / task.blocks, task.fits, kMostMmaParts}) parts = most < parts ? most : parts;
  return parts < 2 ? 1 : static_cast<int>(parts);
}

}  // namespace headrace::cuda
