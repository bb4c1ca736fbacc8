// What OpContext::stream points to on a CUDA device.
#pragma once
#include <cuda_runtime.h>

#include "headrace/ops/cuda/limits.h"
#include "headrace/ops/cuda/runtime/check_cuda.h"
#include "headrace/ops/op_context.h"

namespace headrace::cuda {

class CublasLtPlans;
class KernelAttributes;
class GemmSequence;

// One device's queue of work and what its kernels share. Owned by the runtime.
struct Stream {
  cudaStream_t handle = nullptr;
  int device = 0, num_sms = 0, arch = 0;  // arch: 90 for sm_90
  // What a block may ask for, static memory included, and what a multiprocessor has for its blocks and 1 KiB of each.
  size_t shared_bytes_of_block = 0, shared_bytes_of_sm = 0;
  void* scratch = nullptr;  // kernels of one op at a time; sized once
  size_t scratch_bytes = 0;
  uint32_t* counters = nullptr;  // kCounters of them, zero between kernels; then one at which all blocks of a grid meet
  static constexpr int64_t kCounters = 256;
  // Not owned, never null; copies of the stream share them.
  CublasLtPlans* blas = nullptr;      // of the library's products
  GemmSequence* chain = nullptr;      // products that were asked for and are not queued yet
  KernelAttributes* notes = nullptr;  // what the device was told and asked about kernels
};

// Makes the stream's device the calling thread's current one, as launches, allocations and what is asked of kernels
// need it. Wherever the library is entered (entry.h, runtime.cpp) this comes first. It is not undone: a thread that
// never chose has device 0, which would get a context, and its memory with it, by being made current again.
inline void make_current(const Stream& stream) {
  int now = 0;
  check_cuda(cudaGetDevice(&now), "cudaGetDevice");
  if (now != stream.device) check_cuda(cudaSetDevice(stream.device), "cudaSetDevice");
}

// Queues the products that wait. Everything that is to come after them does this first.
void launch_waiting(const Stream& stream);

// The stream as it is: for what may join the products that wait. Error kInvalidArgument for a context without one.
Stream& stream_with_waiting(const OpContext& context);
// The stream to queue an op on.
Stream& stream_of(const OpContext& context);

// Before a launch with so much dynamic shared memory: what a kernel may have without being asked for is 48 KiB, less
// what it has of static memory. `kernel` is its host function here and below, the device the calling thread's
// (make_current).
void allow_shared(const Stream& stream, const void* kernel, size_t bytes, const char* name);
// Blocks of so many threads and so much dynamic shared memory that a multiprocessor has room for, at least 1. A device
// is asked once for each kernel.
int resident_blocks(const Stream& stream, const void* kernel, int threads, size_t shared_bytes, const char* name);

// After a launch: a bad configuration is reported here, a fault of the kernel itself at the next synchronisation.
inline void check_launch(const char* kernel) { check_cuda(cudaGetLastError(), kernel); }

}  // namespace headrace::cuda
