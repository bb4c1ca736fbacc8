// Descriptions of tensors for the copy engine, by the driver's function, which is asked for at run time: the side
// library links no driver.
#pragma once
#include <cuda.h>

#include "headrace/base/tensor.h"
#include "headrace/kernels/cuda/stream.h"

namespace headrace::cuda {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

// Error kCuda where the driver is too old to have it.
inline EncodeTiled tensor_map_encoder() {
  static const EncodeTiled encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
               "finding cuTensorMapEncodeTiled");
    HR_REQUIRE(found == cudaDriverEntryPointSuccess, ErrorCode::kCuda,
               "cuda: the driver has no cuTensorMapEncodeTiled; expected one of CUDA 12 or newer");
    return reinterpret_cast<EncodeTiled>(function);
  }();
  return encode;
}

// Of rows of 16-bit floats, in boxes of `box_rows` x 64 elements with the 128-byte swizzle; zeros past the ends. `op`
// stands in the error.
inline CUtensorMap map_of_rows(const TensorView& x, cuuint32_t box_rows, const char* op) {
  CUtensorMap map{};
  const auto row = static_cast<cuuint64_t>(x.stride(0)) * 2;
  const cuuint64_t sizes[4] = {static_cast<cuuint64_t>(x.dim(1)), static_cast<cuuint64_t>(x.dim(0)), 1, 1};
  const cuuint64_t strides[3] = {row, row * sizes[1], row * sizes[1]};
  const cuuint32_t box[4] = {64, box_rows, 1, 1}, steps[4] = {1, 1, 1, 1};
  const CUresult status = tensor_map_encoder()(
      &map, x.dtype() == DType::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4, x.data(),
      sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  HR_REQUIRE(status == CUDA_SUCCESS, ErrorCode::kCuda, "cuda ", op, ": no tensor map for ", x.dim(0), " x ", x.dim(1),
             " elements: driver error ", static_cast<int>(status));
  return map;
}

}  // namespace headrace::cuda
