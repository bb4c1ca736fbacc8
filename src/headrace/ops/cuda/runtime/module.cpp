// The CUDA library's one exported symbol.
#include <array>
#include <memory>

#include "headrace/core/device_runtime.h"
#include "headrace/core/error.h"
#include "headrace/ops/cuda/gemm/sm90/gemm_sequence_plan.h"
#include "headrace/ops/cuda/limits.h"
#include "headrace/ops/cuda/ops.h"
#include "headrace/ops/cuda/runtime/device_check.h"
#include "headrace/ops/cuda/runtime/entry.h"
#include "headrace/ops/cuda/runtime/memory_left.h"
#include "headrace/ops/cuda/runtime/runtime.h"
#include "headrace/ops/cuda_module.h"

namespace headrace::cuda {
namespace {

constexpr int32_t kMaxDevices = 64;

SharedDevice& shared_device(int32_t index) {
  static auto& devices = *new std::array<SharedDevice, kMaxDevices>;  // kept: runtimes may be destroyed during exit
  HR_REQUIRE(index >= 0 && index < kMaxDevices, ErrorCode::kNoDevice, "cuda: device ", index, " is not there");
  return devices[static_cast<size_t>(index)];
}

std::unique_ptr<DeviceRuntime> make_runtime(int32_t index) {
  return std::make_unique<Runtime>(index, shared_device(index));
}

std::unique_ptr<DeviceRuntime> make_runtime_on(int32_t index, void* stream) {
  return std::make_unique<Runtime>(index, shared_device(index), static_cast<cudaStream_t>(stream));
}

bool is_capturing(void* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status), "asking whether a stream captures");
  return status != cudaStreamCaptureStatusNone;
}

template <DeviceCap kCap>
constexpr OpSet capped_ops(std::string_view name) {
  OpSet set{.name = name,
            .most_sequence_rows = kCap == DeviceCap::kNone ? GemmSequencePlan::kMostRows : 0,
            .most_head_dim = kMostHeadDim,
            .most_gdn_key_dim = kMostGDNKeyDim,
            .most_conv_width = kMostConvWidth,
            .most_experts = kMostExperts,
            .most_vocab = kMostVocab};
#define HR_ENTRY(op, Args) set.op = Entry<op, kCap>::run;
  HR_OPS(HR_ENTRY, HR_ENTRY, HR_ENTRY)
#undef HR_ENTRY
  set.kv_len_buckets = Entry<kv_len_buckets, kCap>::run;
  return set;
}
constexpr OpSet kOps = capped_ops<DeviceCap::kNone>("cuda");

// Ops table for every device that the library has code for (limits.h): sm_80 machine code runs on 8.0, 8.6 and 8.9.
constexpr OpSet without_steps(OpSet set) {
  set.gdn_step = OpSet{}.gdn_step;  // these two exist on sm_90 only
  set.attention_step = OpSet{}.attention_step;
  return set;
}
constexpr OpSet kBaselineOps = without_steps(capped_ops<DeviceCap::kSm80>("cuda_baseline"));

constexpr OpSet reference_of(OpSet set) {
  set.name = "cuda_reference";
  set.kv_len_buckets = OpSet{}.kv_len_buckets;
  set.paged_attention = Entry<reference::paged_attention, DeviceCap::kSm80>::run;
  return set;
}
constexpr OpSet kReferenceOps = reference_of(kBaselineOps);

const OpSet& ops(std::string_view name) {
  for (const OpSet* set : {&kOps, &kBaselineOps, &kReferenceOps}) {
    if (set->name == name) return *set;
  }
  throw Error(ErrorCode::kUnsupported,
              str("cuda kernels: set '", name, "' is not built; built are: cuda, cuda_baseline, cuda_reference"));
}

std::vector<CudaDevice> devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) return {};
  std::vector<CudaDevice> found;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp p{};
    check_cuda(cudaGetDeviceProperties(&p, i), "cudaGetDeviceProperties");
    found.push_back(
        {.name = p.name, .total_bytes = static_cast<int64_t>(p.totalGlobalMem), .capability = p.major * 10 + p.minor});
  }
  return found;
}

int64_t free_bytes(int32_t index) {
  checked_device(index);
  return static_cast<int64_t>(memory_left().available);
}

int32_t driver_cuda() {
  int version = 0;
  return cudaDriverGetVersion(&version) == cudaSuccess ? version : 0;
}

constexpr CudaModule kModule = {.version = kCudaModuleVersion,
                                .make_runtime = make_runtime,
                                .make_runtime_on = make_runtime_on,
                                .is_capturing = is_capturing,
                                .ops = ops,
                                .devices = devices,
                                .free_bytes = free_bytes,
                                .driver_cuda = driver_cuda};

}  // namespace
}  // namespace headrace::cuda

extern "C" __attribute__((visibility("default"))) const headrace::CudaModule* headrace_cuda_module() {
  return &headrace::cuda::kModule;
}
