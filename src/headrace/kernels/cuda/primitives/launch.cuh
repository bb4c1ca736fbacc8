// Launches that overlap with the end of the kernel before them (programmatic dependent launch), in graphs as well.
//
// A kernel launched with launch_early may start while the one before it runs. It must call wait_for_previous() in every
// thread that reads what earlier kernels wrote or writes anything, before it does so; only constants, the model's
// weights, what DeviceMetadata promises and plans that an earlier layer left (WorkPlan::stands) may be read earlier.
// let_next_start() in every block lets the next kernel begin; what that kernel reads before its own wait_for_previous()
// is up to its author.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "headrace/kernels/cuda/kernel_notes.h"
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

// kAtOnce: blocks of the grid wait for one another, so all of them have to run at the same time. Error kCuda where the
// device has no room for them.
enum class GridRuns : uint8_t { kInAnyOrder, kAtOnce };

// How much of a multiprocessor's memory is shared memory, and not L1, while a kernel runs that asks for none as it is
// launched. It is divided anew only where no block runs, so kernels that follow one another closely had better agree.
// kOfStep: what KernelNotes::has_few_rows says. kAll: what comes next needs it.
enum class SharedShare : uint8_t { kOfStep, kAll };

template <class... Params>
void allow_shared(const Stream& stream, void (*kernel)(Params...), size_t bytes, const char* name) {
  allow_shared(stream, reinterpret_cast<const void*>(kernel), bytes, name);
}

// kernel<<<grid, block, shared_bytes, stream>>>(params). `name` stands in the error. `cluster`: blocks along x that can
// read one another's shared memory; more than 1 needs sm_90.
template <class Params>
void launch_early(const Stream& stream, void (*kernel)(Params), dim3 grid, dim3 block, size_t shared_bytes,
                  const Params& params, const char* name, unsigned cluster = 1, GridRuns runs = GridRuns::kInAnyOrder,
                  SharedShare share = SharedShare::kOfStep) {
  if (shared_bytes > 0) allow_shared(stream, kernel, shared_bytes, name);
  cudaLaunchAttribute attributes[4]{};
  cudaLaunchConfig_t config{};
  const auto add = [&](cudaLaunchAttributeID id) -> cudaLaunchAttributeValue& {
    attributes[config.numAttrs].id = id;
    return attributes[config.numAttrs++].val;
  };
  if (stream.arch >= 90) {
    add(cudaLaunchAttributeProgrammaticStreamSerialization).programmaticStreamSerializationAllowed = 1;
    constexpr unsigned kPercent[] = {58, 100};  // the first leaves L1 room for what loads have under way
    if (shared_bytes == 0 && (share == SharedShare::kAll || stream.notes->has_few_rows())) {
      add(cudaLaunchAttributePreferredSharedMemoryCarveout).sharedMemCarveout = kPercent[static_cast<int>(share)];
    }
  }
  if (cluster > 1) add(cudaLaunchAttributeClusterDimension).clusterDim = {cluster, 1, 1};
  if (runs == GridRuns::kAtOnce) add(cudaLaunchAttributeCooperative).cooperative = 1;
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream.handle;
  config.attrs = attributes;
  check_cuda(cudaLaunchKernelEx(&config, kernel, params), name);
}

}  // namespace headrace::cuda
