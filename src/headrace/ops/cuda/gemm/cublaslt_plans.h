// cuBLASLt's handle and the algorithm that it chose for each shape.
#pragma once
#include <cublasLt.h>

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "headrace/ops/fused_linear.h"

namespace headrace::cuda {

struct Destroy {
  void operator()(cublasLtMatrixLayout_t layout) const noexcept;
  void operator()(cublasLtMatmulDesc_t descriptor) const noexcept;
};
using Layout = std::unique_ptr<std::remove_pointer_t<cublasLtMatrixLayout_t>, Destroy>;
using Descriptor = std::unique_ptr<std::remove_pointer_t<cublasLtMatmulDesc_t>, Destroy>;

// The handles of a device that no runtime has now. Thread-safe. None is ever destroyed: with CUDA 13.0 that ends the
// captures of other threads with an error.
class CublasLtHandles {
 public:
  cublasLtHandle_t take();  // null if there is none
  void put(cublasLtHandle_t handle);

 private:
  std::mutex mutex_;
  std::vector<cublasLtHandle_t> free_;
};

// Caches one cuBLASLt plan per shape, for one stream, and has a handle. Only handle() is thread-safe. cuBLASLt takes
// some 90 ms to choose its first kernel.
class CublasLtPlans {
 public:
  struct Plan {
    Descriptor descriptor;
    Layout weight, x, residual, y;
    cublasLtMatmulAlgo_t algorithm{};
    bool built = false;  // true if cuBLASLt has a kernel for it
  };
  using Key = std::array<int64_t, 12>;  // all that the choice depends on

  CublasLtPlans(int32_t device, CublasLtHandles& handles) : device_(device), handles_(handles) {}
  CublasLtPlans(const CublasLtPlans&) = delete;
  CublasLtPlans& operator=(const CublasLtPlans&) = delete;
  ~CublasLtPlans();

  // Returns the handle. Takes or creates it on the first call, or waits for the thread that does. Thread-safe. Throws
  // kOutOfMemory or kUnsupported; the next call then tries again.
  cublasLtHandle_t handle();
  // Returns the plan of args.products[0], made on the first call for its shape. Valid as long as this object.
  const Plan& plan(const FusedLinearArgs& args);

 private:
  int32_t device_;
  CublasLtHandles& handles_;
  std::once_flag started_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<Key, Plan> plans_;
};

}  // namespace headrace::cuda
