// Counting sort in one CTA, or for many slots in a cluster of CTAs with a share each. No result of a GEMM depends on
// its row's place in the tile, so rows take their places as they come.
#include "headrace/core/error.h"
#include "headrace/ops/cuda/arch/cluster.cuh"
#include "headrace/ops/cuda/arch/pdl.cuh"
#include "headrace/ops/cuda/moe/expert_groups.h"

namespace headrace::cuda {
namespace {

constexpr int kThreads = 1024, kMostGroupedExperts = 4096, kClusterBlocks = 8;
constexpr int32_t kFewSlots = 4096;  // one CTA sorts so many as fast as a cluster

// Exclusive prefix sums of the counts of rows and tiles, by the first warp; each lane takes a run of experts.
__device__ void scan(const ExpertGroups& p, const int* count, int* row_begin, int* tile_begin) {
  const int lane = threadIdx.x % 32, run = (p.num_experts + 31) / 32;
  const int first = min(lane * run, p.num_experts), last = min(first + run, p.num_experts);
  int rows = 0, tiles = 0;
  for (int e = first; e < last; ++e) {
    rows += count[e];
    tiles += (count[e] + p.tile_rows - 1) / p.tile_rows;
  }
  int rows_before = rows, tiles_before = tiles;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int r = __shfl_up_sync(0xffffffffu, rows_before, distance),
              t = __shfl_up_sync(0xffffffffu, tiles_before, distance);
    if (lane >= distance) rows_before += r, tiles_before += t;
  }
  rows_before -= rows, tiles_before -= tiles;
  for (int e = first; e < last; ++e) {
    row_begin[e] = rows_before, tile_begin[e] = tiles_before;
    rows_before += count[e];
    tiles_before += (count[e] + p.tile_rows - 1) / p.tile_rows;
  }
  if (lane == 31) tile_begin[p.num_experts] = tiles_before;
}

// Writes the tiles of the experts, and empty ones after them.
__device__ void write_tiles(const ExpertGroups& p, const int* count, const int* row_begin, const int* tile_begin) {
  for (int e = threadIdx.x; e < p.num_experts; e += kThreads) {
    const int tiles = tile_begin[e + 1] - tile_begin[e];
    for (int i = 0; i < tiles; ++i) {
      const int begin = count[e] * i / tiles, end = count[e] * (i + 1) / tiles;
      p.tiles[tile_begin[e] + i] = {e, row_begin[e] + begin, end - begin};
    }
  }
  const int num_tiles = tile_begin[p.num_experts];
  for (int tile = num_tiles + threadIdx.x; tile < p.most_tiles(); tile += kThreads) p.tiles[tile] = {0, 0, 0};
  if (threadIdx.x == 0) *p.num_tiles = num_tiles;
}

// For each expert `count` becomes the slots of all CTAs, and `before` those of the CTAs before this one. All CTAs read
// `own` until each has waited for the cluster.
template <int kBlocks>
__device__ void add_blocks(int num_experts, const int* own, int* count, int* before) {
#if __CUDA_ARCH__ >= 900
  cluster_arrive_release();
  cluster_wait_acquire();
  for (int e = threadIdx.x; e < num_experts; e += kThreads) {
    const auto here = static_cast<uint32_t>(__cvta_generic_to_shared(own + e));
    int all = 0;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      if (block == static_cast<int>(blockIdx.x)) before[e] = all;
      int theirs;
      asm volatile("ld.shared::cluster.s32 %0, [%1];"
                   : "=r"(theirs)
                   : "r"(address_in(here, static_cast<unsigned>(block)))
                   : "memory");
      all += theirs;
    }
    count[e] = all;
  }
  cluster_arrive_relaxed();
#endif
}

template <int kBlocks>
__global__ void __launch_bounds__(kThreads) sort_slots(const __grid_constant__ ExpertGroups p) {
  extern __shared__ int shared[];
  int *own = shared, *tile_begin = own + p.num_experts, *row_begin = tile_begin + p.num_experts + 1;
  int *count = kBlocks == 1 ? own : row_begin + p.num_experts, *before = count + p.num_experts;
  for (int e = threadIdx.x; e < p.num_experts; e += kThreads) own[e] = 0;
  __syncthreads();
  pdl_wait();
  pdl_launch_dependents();
  const int first = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
#pragma unroll 8
  for (int i = first; i < p.slots; i += kBlocks * kThreads) {
    const int expert = __ldcg(p.experts + i);
    if (expert != kNoExpert) atomicAdd(&own[expert], 1);
  }
  __syncthreads();
  if constexpr (kBlocks > 1) add_blocks<kBlocks>(p.num_experts, own, count, before);
  __syncthreads();
  if (threadIdx.x < 32) scan(p, count, row_begin, tile_begin);
  __syncthreads();
  if (blockIdx.x == 0) write_tiles(p, count, row_begin, tile_begin);
  __syncthreads();
  if constexpr (kBlocks > 1) {
    for (int e = threadIdx.x; e < p.num_experts; e += kThreads) row_begin[e] += before[e];
    __syncthreads();
  }
#pragma unroll 8
  for (int i = first; i < p.slots; i += kBlocks * kThreads) {
    const int expert = __ldcg(p.experts + i);
    if (expert != kNoExpert) p.order[atomicAdd(&row_begin[expert], 1)] = i;
  }
#if __CUDA_ARCH__ >= 900
  if constexpr (kBlocks > 1) cluster_wait_acquire();  // no CTA exits while others read its counts
#endif
}

}  // namespace

void group_slots(const ExpertGroups& groups, const Stream& stream) {
  HR_REQUIRE(groups.num_experts <= kMostGroupedExperts, ErrorCode::kUnsupported, "expert_mlp: ", groups.num_experts,
             " experts, at most ", kMostGroupedExperts, " are built");
  static_assert((5 * kMostGroupedExperts + 1) * sizeof(int) <= kLeastSharedBytes);
  const bool cluster = stream.arch >= 90 && groups.slots > kFewSlots;
  const size_t shared_bytes = static_cast<size_t>((cluster ? 5 : 3) * groups.num_experts + 1) * sizeof(int);
  const unsigned blocks = cluster ? kClusterBlocks : 1;
  launch_pdl(stream, cluster ? sort_slots<kClusterBlocks> : sort_slots<1>, dim3(blocks), dim3(kThreads), shared_bytes,
             groups, "expert_mlp: sorting", {.cluster = blocks});
}

}  // namespace headrace::cuda
