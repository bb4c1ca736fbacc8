// On a CUDA device OpContext::stream points to a Stream.
#pragma once
#include <cuda_runtime.h>

#include "headrace/ops/cuda/limits.h"
#include "headrace/ops/cuda/runtime/check_cuda.h"
#include "headrace/ops/cuda/runtime/device_properties.h"
#include "headrace/ops/op_context.h"

namespace headrace::cuda {

class CublasLtPlans;
class KernelAttributes;

// How a kernel may run whose CTAs wait for one another, so that all of them must be resident. Two such kernels side by
// side could each hold a part of the device forever. So one runtime of a process runs them on a device. It launches
// them as a whole (cooperative launch) where kernels of other processes run beside its own (MPS).
enum class GridBarrier : uint8_t { kNone, kPlain, kCooperative };

// The stream of a runtime and the resources that its kernels share. The runtime owns it.
struct Stream {
  cudaStream_t handle = nullptr;
  int device = 0, num_sms = 0, arch = 0;  // arch: 90 for sm_90
  // Shared memory that a CTA may request, static included, and that an SM has for its CTAs and 1 KiB of each.
  size_t shared_bytes_of_block = 0, shared_bytes_of_sm = 0;
  void* scratch = nullptr;  // one op uses it at a time; its size is fixed
  size_t scratch_bytes = 0;
  uint32_t* counters = nullptr;  // kCounters of them, zero between kernels; then one for the grid barrier
  void* hand_over = nullptr;     // two generations of HandOver::kBytes for GEMM sequences, filled with ones at first
  static constexpr int64_t kCounters = kStreamCounters;
  // Not owned, never null. Copies of the stream share them.
  CublasLtPlans* blas = nullptr;      // cuBLASLt plans
  KernelAttributes* notes = nullptr;  // kernel attributes of the device, shared by its runtimes
  GridBarrier grid_barrier = GridBarrier::kNone;
  bool has_few_rows = false;  // of the op that is being launched: entry.h
  // kNone: kernels wait for all earlier work before they start. For streams with other people's work: what a kernel
  // reads before pdl_wait() (pdl.cuh) may have been written just before it.
  enum class Overlap : uint8_t { kPdl, kNone } overlap = Overlap::kPdl;

  DeviceProperties properties() const {
    return {.arch = arch,
            .num_sms = num_sms,
            .shared_bytes_of_block = static_cast<int64_t>(shared_bytes_of_block),
            .shared_bytes_of_sm = static_cast<int64_t>(shared_bytes_of_sm),
            .scratch_bytes = static_cast<int64_t>(scratch_bytes)};
  }
};

// Makes the stream's device current for the calling thread; launches, allocations, kernel queries and TMA descriptors
// need that. Every entry into the library (entry.h, runtime.cpp) calls it first. It is not undone: making a device
// current again that the thread never chose would create a context there and take its memory.
inline void make_current(const Stream& stream) {
  thread_local bool has_chosen = false;  // a thread that never chose has device 0, but no context
  int now = 0;
  check_cuda(cudaGetDevice(&now), "cudaGetDevice");
  if (has_chosen && now == stream.device) return;
  check_cuda(cudaSetDevice(stream.device), "cudaSetDevice");
  has_chosen = true;
}

// Returns the stream to queue an op on. Throws kInvalidArgument if the context has none.
Stream& stream_of(const OpContext& context);

// Allows a kernel `bytes` of dynamic shared memory; call it before such a launch. By default a kernel may have 48 KiB
// less its static shared memory. `kernel` is the host function, here and below. Both calls apply to the calling
// thread's current device (make_current). `name` stands in the error.
void allow_shared(const Stream& stream, const void* kernel, size_t bytes, const char* name);
// Returns the CTAs of `threads` threads and `shared_bytes` of dynamic shared memory that fit on an SM, at least 1.
// Queries the device once per kernel.
int resident_blocks(const Stream& stream, const void* kernel, int threads, size_t shared_bytes, const char* name);

// Call after a launch. Throws kCuda for a bad configuration; a fault of the kernel itself appears at the next
// synchronisation.
inline void check_launch(const char* kernel) { check_cuda(cudaGetLastError(), kernel); }

}  // namespace headrace::cuda
