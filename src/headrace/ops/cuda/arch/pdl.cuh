// Programmatic dependent launch (PDL): a kernel overlaps with the end of the kernel before it, in graphs as well.
//
// A kernel launched with launch_pdl may start while its predecessor runs. Every thread must call pdl_wait() before it
// writes anything or reads what earlier kernels wrote. Earlier it may read constants only: the model's weights, what
// DeviceMetadata promises, and plans that an earlier layer left (WorkPlan::stands). pdl_launch_dependents() in every
// CTA lets the next kernel begin; that kernel's author decides what it reads before its own pdl_wait().
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "headrace/ops/cuda/runtime/stream.h"

namespace headrace::cuda {

__device__ inline void pdl_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ inline void pdl_launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// kAtOnce: CTAs of the grid wait for one another, so all of them must be resident (cooperative launch). Launching
// throws kCuda if the device has no room for them.
enum class GridRuns : uint8_t { kInAnyOrder, kAtOnce };

// Shared-memory carve-out (shared memory versus L1) of an SM while a kernel without dynamic shared memory runs. It
// changes only while no CTA runs on the SM, so consecutive kernels should agree. kByRows: one common share in ops of
// few rows (entry.h), which pays beside GEMVs and GEMM sequences; the driver's choice in others. kAll: the next kernel
// needs all shared memory.
enum class SharedShare : uint8_t { kByRows, kAll };

struct LaunchOptions {
  unsigned cluster = 1;  // CTAs of a cluster, along x; more than 1 needs sm_90
  GridRuns runs = GridRuns::kInAnyOrder;
  SharedShare share = SharedShare::kByRows;
};

template <class... Params>
void allow_shared(const Stream& stream, void (*kernel)(Params...), size_t bytes, const char* name) {
  allow_shared(stream, reinterpret_cast<const void*>(kernel), bytes, name);
}

// Launches kernel<<<grid, block, shared_bytes, stream>>>(params), with PDL on sm_90 unless the stream has none. Throws
// kCuda; `name` stands in the error.
template <class Params>
void launch_pdl(const Stream& stream, void (*kernel)(Params), dim3 grid, dim3 block, size_t shared_bytes,
                const Params& params, const char* name, const LaunchOptions& options = {}) {
  if (shared_bytes > 0) allow_shared(stream, kernel, shared_bytes, name);
  cudaLaunchAttribute attributes[4]{};
  cudaLaunchConfig_t config{};
  const auto add = [&](cudaLaunchAttributeID id) -> cudaLaunchAttributeValue& {
    attributes[config.numAttrs].id = id;
    return attributes[config.numAttrs++].val;
  };
  if (stream.arch >= 90) {
    if (stream.overlap == Stream::Overlap::kPdl) {
      add(cudaLaunchAttributeProgrammaticStreamSerialization).programmaticStreamSerializationAllowed = 1;
    }
    constexpr unsigned kBesideFewRows = 58, kAll = 100;  // percent
    if (shared_bytes == 0 && (stream.has_few_rows || options.share == SharedShare::kAll)) {
      add(cudaLaunchAttributePreferredSharedMemoryCarveout).sharedMemCarveout =
          options.share == SharedShare::kAll ? kAll : kBesideFewRows;
    }
  }
  if (options.cluster > 1) add(cudaLaunchAttributeClusterDimension).clusterDim = {options.cluster, 1, 1};
  if (options.runs == GridRuns::kAtOnce) add(cudaLaunchAttributeCooperative).cooperative = 1;
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream.handle;
  config.attrs = attributes;
  check_cuda(cudaLaunchKernelEx(&config, kernel, params), name);
}

}  // namespace headrace::cuda
