// Launches that overlap with the end of the kernel before them (programmatic dependent launch), in graphs as well.
//
// A kernel launched with launch_early may start while the one before it runs. It must call wait_for_previous() in every
// thread that reads what earlier kernels wrote or writes anything, before it does so; only constants, the model's
// weights, and what DeviceMetadata promises may be read earlier. let_next_start() in every block lets the next kernel
// begin; what that kernel reads before its own wait_for_previous() is up to its author.
#pragma once
#include <cuda_runtime.h>

#include "headrace/kernels/cuda/stream.h"

namespace headrace::cuda {

__device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ inline void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// kernel<<<grid, block, shared_bytes, stream>>>(params). `name` stands in the error. `cluster`: blocks along x that can
// read one another's shared memory; more than 1 needs sm_90.
template <class Params>
void launch_early(const Stream& stream, void (*kernel)(Params), dim3 grid, dim3 block, size_t shared_bytes,
                  const Params& params, const char* name, unsigned cluster = 1) {
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {cluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream.handle;
  config.attrs = attributes;
  config.numAttrs = stream.arch < 90 ? 0 : cluster > 1 ? 2 : 1;
  check_cuda(cudaLaunchKernelEx(&config, kernel, params), name);
}

}  // namespace headrace::cuda
