// TMA copies of sm_90 and the mbarriers that they complete on. PTX ISA 8, sections "mbarrier" and
// "cp.async.bulk.tensor".
#pragma once
#include <cuda.h>

#include <cstdint>

namespace headrace::cuda {

__device__ inline void barrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Makes initialised barriers visible to TMA.
__device__ inline void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives and adds `bytes` of copies to what the barrier waits for.
__device__ inline void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Adds `bytes` of copies to what the barrier waits for, without arriving.
__device__ inline void barrier_expect_more(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Arrives when all cp.async that this thread has issued so far are complete.
__device__ inline void arrive_behind_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @p bra done; bra again; done: }" ::
          "r"(barrier),
      "r"(parity)
      : "memory");
}

// barrier_wait for a warp with time to spare. It polls seldom, because polling takes issue slots from the warps beside
// it.
__device__ inline void barrier_wait_asleep(uint32_t barrier, uint32_t parity) {
  for (;;) {
    uint32_t done;
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    if (done != 0) return;
    __nanosleep(200);
  }
}

// L2 cache policies of copies, as createpolicy encodes them: evict_first, and normal for all bytes.
constexpr uint64_t kReadOnce = 0x12f0000000000000, kReadAgain = 0x1000000000000000;

// TMA load of a box of a 4-dimensional tensor; its bytes complete on `barrier`. Coordinates begin with the innermost.
__device__ inline void tma_load(uint32_t to, const CUtensorMap& map, int x, int y, int z, int w, uint32_t barrier,
                                uint64_t policy = kReadAgain) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3, "
      "%4, %5}], [%6], %7;" ::"r"(to),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(x), "r"(y), "r"(z), "r"(w), "r"(barrier), "l"(policy)
      : "memory");
}

// Bulk copy of a multiple of 16 bytes that no kernel writes meanwhile; the bytes complete on `barrier`.
__device__ inline void copy_bytes(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

// Named barrier of `threads` threads of the CTA; id 0 is __syncthreads.
__device__ inline void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// With immediate operands: racecheck does not follow operands in registers.
template <int kId, int kThreads>
__device__ inline void named_barrier() {
  asm volatile("bar.sync %0, %1;" ::"n"(kId), "n"(kThreads) : "memory");
}
template <int kId, int kThreads>
__device__ inline void named_barrier_arrive() {
  asm volatile("bar.arrive %0, %1;" ::"n"(kId), "n"(kThreads) : "memory");
}

// Barrier of 128 threads. Returns true to all of them if `mine` is true for any.
__device__ inline bool any_of_group(int id, bool mine) {
  int any;
  asm volatile("{ .reg .pred p, q; setp.ne.b32 p, %1, 0; bar.red.or.pred q, %2, 128, p; selp.b32 %0, 1, 0, q; }"
               : "=r"(any)
               : "r"(static_cast<int>(mine)), "r"(id)
               : "memory");
  return any != 0;
}

// Stage of a pipeline of kStages stages, and its phase parity.
template <int kStages>
struct PipelineState {
  int stage = 0;
  uint32_t phase = 0;
  __device__ void next() {
    if (++stage == kStages) stage = 0, phase ^= 1;
  }
};

}  // namespace headrace::cuda
