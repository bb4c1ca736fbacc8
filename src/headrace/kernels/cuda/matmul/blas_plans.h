// cuBLASLt's handle and what it chose for each shape.
#pragma once
#include <cublasLt.h>

#include <array>
#include <future>
#include <map>
#include <memory>

#include "headrace/kernels/fused_linear.h"

namespace headrace::cuda {

struct Destroy {
  void operator()(cublasLtMatrixLayout_t layout) const noexcept;
  void operator()(cublasLtMatmulDesc_t descriptor) const noexcept;
};
using Layout = std::unique_ptr<std::remove_pointer_t<cublasLtMatrixLayout_t>, Destroy>;
using Descriptor = std::unique_ptr<std::remove_pointer_t<cublasLtMatmulDesc_t>, Destroy>;

// Of one stream, and not thread-safe, as it is. The library chooses its first kernel in a thread of its own, which
// takes some 90 ms that the loading of weights hides.
class BlasPlans {
 public:
  struct Plan {
    Descriptor descriptor;
    Layout weight, x, residual, y;
    cublasLtMatmulAlgo_t algorithm{};
    bool built = false;  // whether the library has a kernel for it
  };
  using Key = std::array<int64_t, 12>;  // all that the choice depends on

  explicit BlasPlans(int32_t device);
  BlasPlans(const BlasPlans&) = delete;
  BlasPlans& operator=(const BlasPlans&) = delete;
  ~BlasPlans();

  cublasLtHandle_t handle();  // waits until the library has started; error kOutOfMemory, kUnsupported
  // For one product; valid as long as this object.
  const Plan& plan(const FusedLinearArgs& args);

 private:
  std::future<cublasLtHandle_t> starting_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<Key, Plan> plans_;
};

}  // namespace headrace::cuda
