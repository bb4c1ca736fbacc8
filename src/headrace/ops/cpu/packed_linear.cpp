// GEMM y = x W^T of packed weights. A call quantises x once; a task then computes the columns of y that belong to some
// tiles of W. One to four rows of x are bound by reading W; more of them share unpacked panels.
#include "headrace/ops/cpu/packed_linear.h"

#include "headrace/ops/cpu/packed_tiles.h"
#include "headrace/ops/cpu/parallel_scratch.h"

namespace headrace::cpu::HR_ISA {
namespace {

// A call with its quantised x [rows, in / kGroup].
struct Call {
  const PackedLinearParams& p;
  XGroup* x;
  long tiles, tiles_per_task;
};

constexpr long kRowsToQuantize = 4;  // per task

void quantize_rows(void* context, long task, float*) {
  const auto& call = *static_cast<const Call*>(context);
  const long row = task * kRowsToQuantize;
  const long end = row + kRowsToQuantize < call.p.rows ? row + kRowsToQuantize : call.p.rows;
  for (long r = row; r < end; ++r) quantize_row(call.p, r, call.x + r * groups_of(call.p));
}

using MultiplyTile = void (*)(const PackedLinearParams& p, long tile, long row, long rows, const XGroup* x,
                              float* scratch);

MultiplyTile kernel_of(BlockFormat format) {
  switch (format) {
    case BlockFormat::kQ4_0: return multiply_tile<BlockFormat::kQ4_0>;
    case BlockFormat::kQ4_1: return multiply_tile<BlockFormat::kQ4_1>;
    case BlockFormat::kQ5_0: return multiply_tile<BlockFormat::kQ5_0>;
    case BlockFormat::kQ5_1: return multiply_tile<BlockFormat::kQ5_1>;
    case BlockFormat::kQ8_0: return multiply_tile<BlockFormat::kQ8_0>;
    case BlockFormat::kQ4_K: return multiply_tile<BlockFormat::kQ4_K>;
    case BlockFormat::kQ5_K: return multiply_tile<BlockFormat::kQ5_K>;
    case BlockFormat::kQ6_K: return multiply_tile<BlockFormat::kQ6_K>;
  }
  __builtin_unreachable();
}

void multiply_tiles(void* context, long task, float* scratch) {
  const auto& call = *static_cast<const Call*>(context);
  const MultiplyTile multiply = kernel_of(call.p.format);
  const long first = task * call.tiles_per_task;
  const long end = first + call.tiles_per_task < call.tiles ? first + call.tiles_per_task : call.tiles;
  for (long row = 0; row < call.p.rows; row += kMostRows) {
    const long rows = call.p.rows - row < kMostRows ? call.p.rows - row : kMostRows;
    for (long tile = first; tile < end; ++tile)
      multiply(call.p, tile, row, rows, call.x + row * groups_of(call.p), scratch);
  }
}

// Tiles of a task: it is long enough to pay for what is prefetched behind its end, and there are enough tasks to share
// the work evenly. With more than one block of rows, weights are to stay in the second-level cache.
long tiles_per_task(const PackedLinearParams& p, long tiles) {
  constexpr long kTasksPerThread = 8, kMostTilesOfBlocks = 8;
  const long tasks = kTasksPerThread * (p.threads > 1 ? p.threads : 1), per_task = (tiles + tasks - 1) / tasks;
  return p.rows > kMostRows && per_task > kMostTilesOfBlocks ? kMostTilesOfBlocks : per_task;
}

// `scratch` has room for the quantised x.
void run(void* context, long, float* scratch) {
  const auto& p = *static_cast<const PackedLinearParams*>(context);
  const long tiles = (p.out + kTileRows - 1) / kTileRows;
  Call call{
      .p = p, .x = reinterpret_cast<XGroup*>(scratch), .tiles = tiles, .tiles_per_task = tiles_per_task(p, tiles)};
  parallel_for_with_scratch(p.threads, (p.rows + kRowsToQuantize - 1) / kRowsToQuantize, 0, quantize_rows, &call);
  parallel_for_with_scratch(p.threads, (tiles + call.tiles_per_task - 1) / call.tiles_per_task, kTaskFloats,
                            multiply_tiles, &call);
}

}  // namespace

void packed_linear(const PackedLinearParams& params) {
  const long floats = params.rows * groups_of(params) * static_cast<long>(sizeof(XGroup) / sizeof(float));
  parallel_for_with_scratch(1, 1, floats, run, const_cast<PackedLinearParams*>(&params));  // x belongs to all threads
}

}  // namespace headrace::cpu::HR_ISA
