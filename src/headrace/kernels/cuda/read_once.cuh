// How kernels of long contexts read keys: once, so that what others need again stays in the L2, and from the L2 what
// they asked it for while earlier kernels still ran.
#pragma once
#include "headrace/kernels/cuda/paged_attention.h"

namespace headrace::cuda {

#if __CUDA_ARCH__ >= 900

__device__ inline uint64_t read_once_policy() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ inline void copy16(uint32_t to, const void* from, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "l"(policy)
               : "memory");
}

// Tiles of keys of a kv head, from `first` on in steps.
struct TilesAhead {
  int kv_head, first, step;
};

// Asks for this warp's sixteen keys of the first two tiles. Where earlier kernels have yet to write what is read here,
// other lines come to the L2, and that is all: page numbers of any step are in the pool.
template <class T, int kDim, int kKeys>
__device__ inline void prefetch_keys(const AttentionParams& p, const TilesAhead& tiles) {
  constexpr int kTiles = 2, kWarpKeys = 16;
  const int lane = threadIdx.x % 32, n = lane / 2;
  const PagedSide& side = lane % 2 == 0 ? p.k : p.v;
  const int key = (tiles.first + n * tiles.step) * kKeys + static_cast<int>(threadIdx.x) / 32 * kWarpKeys,
            in_row = key >> p.page_shift;
  if (n >= kTiles || side.slot_stride != kDim || in_row >= p.table_stride) return;
  if (key + kWarpKeys > __ldcg(&p.spans->ctx_len)) return;
  const int64_t page = __ldcg(p.page_table + __ldcg(&p.spans->page_row) * p.table_stride + in_row);
  if (page < 0 || page >= side.pages) return;
  const T* at = static_cast<const T*>(side.data) + page * side.page_stride + tiles.kv_head * side.head_stride +
                (key & (p.page_size - 1)) * side.slot_stride;
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(at), "n"(kWarpKeys * kDim * 2) : "memory");
}

#endif

}  // namespace headrace::cuda
