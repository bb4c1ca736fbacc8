// TMA descriptors (CUtensorMap). The driver's encode function is looked up at run time, because the CUDA library does
// not link the driver.
#pragma once
#include <cuda.h>

#include "headrace/core/tensor.h"
#include "headrace/ops/cuda/runtime/stream.h"

namespace headrace::cuda {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

// Returns cuTensorMapEncodeTiled. Throws kCuda if the driver is too old to have it.
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

// Returns the TMA descriptor of `x`, rows of 16-bit floats, with the 128-byte swizzle and zeros past the ends. Sizes
// and box are in elements, strides in bytes, the innermost dimension first. Throws kCuda; `op` stands in the error.
inline CUtensorMap encoded_map(const TensorView& x, const cuuint64_t (&sizes)[4], const cuuint64_t (&strides)[3],
                               const cuuint32_t (&box)[4], const char* op) {
  CUtensorMap map{};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  const CUresult status = tensor_map_encoder()(
      &map, x.dtype() == DType::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4, x.data(),
      sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  HR_REQUIRE(status == CUDA_SUCCESS, ErrorCode::kCuda, "cuda ", op, ": no tensor map for ", x.dim(0), " x ", x.dim(1),
             " elements: driver error ", static_cast<int>(status));
  return map;
}

// Descriptor with dimensions [elements, rows] and TMA boxes of `box_rows` x 64 elements.
inline CUtensorMap map_of_rows(const TensorView& x, cuuint32_t box_rows, const char* op) {
  const auto row = static_cast<cuuint64_t>(x.stride(0)) * 2, elements = static_cast<cuuint64_t>(x.dim(1)),
             rows = static_cast<cuuint64_t>(x.dim(0));
  return encoded_map(x, {elements, rows, 1, 1}, {row, row * elements, row * elements}, {64, box_rows, 1, 1}, op);
}

// Descriptor of rows of whole chunks of 64 elements. Dimensions [64, rows, chunks]; a TMA box has `box_chunks` chunks
// of `box_rows` x 64 elements each.
inline CUtensorMap map_of_chunks(const TensorView& x, cuuint32_t box_rows, cuuint32_t box_chunks, const char* op) {
  constexpr cuuint64_t kChunk = 64;
  const auto row = static_cast<cuuint64_t>(x.stride(0)) * 2, chunks = static_cast<cuuint64_t>(x.dim(1)) / kChunk,
             rows = static_cast<cuuint64_t>(x.dim(0));
  return encoded_map(x, {kChunk, rows, chunks, 1}, {row, kChunk * 2, row * rows}, {64, box_rows, box_chunks, 1}, op);
}

}  // namespace headrace::cuda
