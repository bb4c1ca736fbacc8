#include "headrace/ops/cuda/runtime/stream.h"

#include <algorithm>

#include "headrace/core/error.h"
#include "headrace/ops/cuda/runtime/kernel_attributes.h"

namespace headrace::cuda {

Stream& stream_of(const OpContext& context) {
  HR_REQUIRE(context.stream != nullptr, ErrorCode::kInvalidArgument,
             "cuda: the op's context has no stream; take it from the device's runtime");
  return *static_cast<Stream*>(context.stream);
}

void allow_shared(const Stream& stream, const void* kernel, size_t bytes, const char* name) {
  stream.notes->allow_shared(kernel, bytes, [&] {
    const cudaError_t status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
    if (status != cudaSuccess) check_cuda(status, str(name, ": asking for ", bytes, " bytes of shared memory").c_str());
  });
}

int resident_blocks(const Stream& stream, const void* kernel, int threads, size_t shared_bytes, const char* name) {
  return stream.notes->resident_blocks(kernel, [&] {
    int count = 0;
    check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&count, kernel, threads, shared_bytes), name);
    return std::max(count, 1);
  });
}

}  // namespace headrace::cuda
