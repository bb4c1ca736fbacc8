// Dense GEMM by cuBLASLt. No other file calls cuBLASLt.
#include <algorithm>
#include <tuple>

#include "headrace/core/error.h"
#include "headrace/ops/cuda/gemm/cublaslt_plans.h"
#include "headrace/ops/cuda/gemm/gemm.h"
#include "headrace/ops/cuda/runtime/check_cuda.h"
#include "headrace/ops/cuda/runtime/memory_left.h"

namespace headrace::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{64} << 20;  // at the end of the stream's scratch

ErrorCode code_of(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_ALLOC_FAILED: return ErrorCode::kOutOfMemory;
    case CUBLAS_STATUS_NOT_SUPPORTED:
    case CUBLAS_STATUS_ARCH_MISMATCH: return ErrorCode::kUnsupported;
    default: return ErrorCode::kInternal;
  }
}

// Throws if a cuBLASLt call failed. kCuda if the device itself failed, which the CUDA runtime reports and cuBLASLt's
// status does not. Otherwise the code of the status; kOutOfMemory names the free bytes.
void check_blas(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const std::string failed = str("cublaslt: ", what, " failed: ", cublasLtGetStatusString(status));
  MemoryLeft left;
  check_cuda(cudaMemGetInfo(&left.available, &left.total), str("asking the device after \"", failed, "\"").c_str());
  const ErrorCode code = code_of(status);
  throw Error(code, code == ErrorCode::kOutOfMemory ? failed + said_of(left) : failed);
}

cudaDataType_t type_of(DType type) {
  return type == DType::kBF16 ? CUDA_R_16BF : type == DType::kF16 ? CUDA_R_16F : CUDA_R_32F;
}

template <class Value>
void set(cublasLtMatmulDesc_t descriptor, cublasLtMatmulDescAttributes_t attribute, Value value) {
  check_blas(cublasLtMatmulDescSetAttribute(descriptor, attribute, &value, sizeof(value)), "setting an attribute");
}

// cuBLASLt is column-major: a row-major matrix is the transpose of a column-major one.
Layout layout_of(DType type, int64_t rows, int64_t columns, int64_t stride) {
  cublasLtMatrixLayout_t layout = nullptr;
  check_blas(cublasLtMatrixLayoutCreate(&layout, type_of(type), static_cast<uint64_t>(columns),
                                        static_cast<uint64_t>(rows), stride),
             "describing a matrix");
  return Layout(layout);
}

// Returns the largest power of two, at most 16, that divides the address of every row.
uint32_t alignment_of(const TensorView& x) {
  const auto bits =
      reinterpret_cast<uintptr_t>(x.data()) | static_cast<uintptr_t>(x.stride(0) * size_of(x.dtype())) | 16;
  return static_cast<uint32_t>(bits & (~bits + 1));
}

CublasLtPlans::Key key_of(const FusedLinearArgs& a) {
  const FusedLinearArgs::Product& p = a.products[0];
  const TensorView& c = a.residual ? a.residual : p.y;
  return {a.x.dim(0),
          p.weight.dim(0),
          a.x.dim(1),
          a.x.stride(0),
          p.weight.stride(0),
          p.y.stride(0),
          c.stride(0),
          static_cast<int64_t>(a.x.dtype()),
          static_cast<int64_t>(p.y.dtype()),
          p.bias ? 1 + static_cast<int64_t>(p.bias.dtype()) : 0,
          a.residual ? 1 : 0,
          std::min({alignment_of(a.x), alignment_of(p.weight), alignment_of(p.y), alignment_of(c)})};
}

CublasLtPlans::Plan plan_of(const FusedLinearArgs& a, cublasLtHandle_t handle) {
  const FusedLinearArgs::Product& p = a.products[0];
  const TensorView& c = a.residual ? a.residual : p.y;
  const int64_t rows = a.x.dim(0), out = p.weight.dim(0), in = a.x.dim(1);
  CublasLtPlans::Plan plan;
  cublasLtMatmulDesc_t descriptor = nullptr;
  check_blas(cublasLtMatmulDescCreate(&descriptor, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing a product");
  plan.descriptor.reset(descriptor);
  set(descriptor, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  if (p.bias) {
    set(descriptor, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(descriptor, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(type_of(p.bias.dtype())));
    set(descriptor, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(p.bias.data()));
  }
  plan.weight = layout_of(p.weight.dtype(), out, in, p.weight.stride(0));
  plan.x = layout_of(a.x.dtype(), rows, in, a.x.stride(0));
  plan.residual = layout_of(c.dtype(), rows, out, c.stride(0));
  plan.y = layout_of(p.y.dtype(), rows, out, p.y.stride(0));
  cublasLtMatmulPreference_t created = nullptr;
  check_blas(cublasLtMatmulPreferenceCreate(&created), "making a preference");
  const std::unique_ptr<std::remove_pointer_t<cublasLtMatmulPreference_t>, decltype(&cublasLtMatmulPreferenceDestroy)>
      preference(created, cublasLtMatmulPreferenceDestroy);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    check_blas(cublasLtMatmulPreferenceSetAttribute(created, attribute, &value, sizeof(value)), "setting a preference");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(p.weight));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(a.x));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(c));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(p.y));
  cublasLtMatmulHeuristicResult_t result{};
  int found = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle, descriptor, plan.weight.get(), plan.x.get(), plan.residual.get(),
                                     plan.y.get(), created, 1, &result, &found);
  if (status == CUBLAS_STATUS_ALLOC_FAILED) check_blas(status, "choosing a kernel");  // else there is none
  plan.built = status == CUBLAS_STATUS_SUCCESS && found > 0;
  plan.algorithm = result.algo;
  return plan;
}

cublasLtHandle_t started(int32_t device) {
  check_cuda(cudaSetDevice(device), "cudaSetDevice");
  cublasLtHandle_t handle = nullptr;
  check_blas(cublasLtCreate(&handle), "starting it");
  constexpr int64_t kRows = 2048, kIn = 1024, kOut = 4096;  // any shape will do: the slow part happens once
  const auto matrix = [](int64_t rows, int64_t columns) { return TensorView(nullptr, DType::kBF16, {rows, columns}); };
  FusedLinearArgs product{.x = matrix(kRows, kIn)};
  product.products[0] = {.weight = matrix(kOut, kIn), .y = matrix(kRows, kOut)};
  plan_of(product, handle);
  return handle;
}

}  // namespace

void Destroy::operator()(cublasLtMatrixLayout_t layout) const noexcept { cublasLtMatrixLayoutDestroy(layout); }
void Destroy::operator()(cublasLtMatmulDesc_t descriptor) const noexcept { cublasLtMatmulDescDestroy(descriptor); }

cublasLtHandle_t CublasLtHandles::take() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) return nullptr;
  const cublasLtHandle_t handle = free_.back();
  free_.pop_back();
  return handle;
}

void CublasLtHandles::put(cublasLtHandle_t handle) {
  const std::lock_guard lock(mutex_);
  free_.push_back(handle);
}

CublasLtPlans::~CublasLtPlans() {
  plans_.clear();
  if (handle_ != nullptr) handles_.put(handle_);
}

cublasLtHandle_t CublasLtPlans::handle() {
  std::call_once(started_, [this] {
    handle_ = handles_.take();
    if (handle_ == nullptr) handle_ = started(device_);
  });
  return handle_;
}

const CublasLtPlans::Plan& CublasLtPlans::plan(const FusedLinearArgs& a) {
  const Key key = key_of(a);
  const auto found = plans_.find(key);
  if (found != plans_.end()) return found->second;
  return plans_.emplace(key, plan_of(a, handle())).first->second;
}

bool cublaslt_gemm(const FusedLinearArgs& a, const Stream& stream) {
  const FusedLinearArgs::Product& p = a.products[0];
  const CublasLtPlans::Plan& plan = stream.blas->plan(a);
  if (!plan.built) return false;
  if (p.bias) set(plan.descriptor.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(p.bias.data()));
  const float one = 1, beta = a.residual ? 1.0f : 0.0f;
  void* workspace = static_cast<char*>(stream.scratch) + (stream.scratch_bytes - kWorkspaceBytes);
  check_blas(
      cublasLtMatmul(stream.blas->handle(), plan.descriptor.get(), &one, p.weight.data(), plan.weight.get(), a.x.data(),
                     plan.x.get(), &beta, a.residual ? a.residual.data() : p.y.data(), plan.residual.get(), p.y.data(),
                     plan.y.get(), &plan.algorithm, workspace, kWorkspaceBytes, stream.handle),
      "a product");
  return true;
}

}  // namespace headrace::cuda
