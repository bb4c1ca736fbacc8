// Thread block clusters (sm_90): cluster barrier and distributed shared memory. PTX ISA 8, sections "barrier.cluster",
// "mapa" and "st.async".
#pragma once
#include <cstdint>

namespace headrace::cuda {

#if __CUDA_ARCH__ >= 900

__device__ inline void cluster_arrive_release() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
// Without release: for a barrier after which no CTA reads what this one wrote.
__device__ inline void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ inline void cluster_wait_acquire() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// Unlike the .aligned form, some of a warp's threads may call it without the others.
__device__ inline void cluster_wait_acquire_apart() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// Returns the cluster address of `shared` in the CTA of rank `block`.
__device__ inline uint32_t address_in(uint32_t shared, unsigned block) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared), "r"(block));
  return there;
}

// Stores to another CTA's shared memory (st.async). The bytes complete on an mbarrier of that CTA. Addresses come from
// address_in.
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
// Bulk copy of a multiple of 16 bytes from this CTA's shared memory to another CTA's. Ordinary stores to the source
// need a fence to the async proxy first.
__device__ inline void copy_to_block(uint32_t to, uint32_t from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "r"(from), "r"(bytes), "r"(barrier)
               : "memory");
}
// Arrives at an mbarrier of any CTA of the cluster (address from address_in) to say that this thread has read its data,
// which others may now overwrite. It does not publish what this CTA wrote: a release at cluster scope takes some 0.4
// us.
__device__ inline void barrier_arrive_having_read_in(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Waits for data that other CTAs of the cluster send. Orders shared memory only: a wait that acquires at cluster scope
// empties the L1 each time.
__device__ inline void barrier_wait_sent(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{ .reg .pred p; again: mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 p, [%0], %1; @p bra done; bra "
      "again; done: fence.acquire.sync_restrict::shared::cluster.cluster; }" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

#endif

}  // namespace headrace::cuda
