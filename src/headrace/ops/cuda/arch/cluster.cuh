// Blocks of a cluster (sm_90): their barrier, and one another's shared memory. PTX ISA 8, sections "barrier.cluster",
// "mapa" and "st.async".
#pragma once
#include <cstdint>

namespace headrace::cuda {

#if __CUDA_ARCH__ >= 900

__device__ inline void cluster_arrive_release() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
// Where nothing that was written is to be seen.
__device__ inline void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ inline void cluster_wait_acquire() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// By some of a warp's threads.
__device__ inline void cluster_wait_acquire_apart() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// The address of another block's shared memory.
__device__ inline uint32_t address_in(uint32_t shared, unsigned block) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared), "r"(block));
  return there;
}

// Stores to another block's shared memory, which arrive at a barrier of that block with their bytes. Addresses are
// those of address_in.
__device__ inline void send(uint32_t to, uint32_t barrier, float x) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(to), "f"(x),
               "r"(barrier)
               : "memory");
}
__device__ inline void send(uint32_t to, uint32_t barrier, float2 x) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(to),
               "f"(x.x), "f"(x.y), "r"(barrier)
               : "memory");
}
__device__ inline void send(uint32_t to, uint32_t barrier, uint2 x) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(to),
               "r"(x.x), "r"(x.y), "r"(barrier)
               : "memory");
}
__device__ inline void send(uint32_t to, uint32_t barrier, float4 x) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
      "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w), "r"(barrier)
      : "memory");
}
__device__ inline void send(uint32_t to, uint32_t barrier, uint4 x) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
      "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "r"(barrier)
      : "memory");
}
// The copy engine's way for a multiple of 16 bytes of this block's memory. What was written there is to be fenced for
// it.
__device__ inline void copy_to_block(uint32_t to, uint32_t from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "r"(from), "r"(bytes), "r"(barrier)
               : "memory");
}
// Arrives at a barrier of any block of the cluster, by the address of address_in: others may write to what this thread
// has read. It does not show them what this block wrote: a release at the cluster's scope takes some 0.4 us.
__device__ inline void barrier_arrive_having_read_in(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Waits for what other blocks of the cluster send. Orders shared memory alone: a wait that acquires at the cluster's
// scope empties the L1 each time.
__device__ inline void barrier_wait_sent(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{ .reg .pred p; again: mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 p, [%0], %1; @p bra done; bra "
      "again; done: fence.acquire.sync_restrict::shared::cluster.cluster; }" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

#endif

}  // namespace headrace::cuda
