// The CUDA library's one exported symbol.
#include <array>
#include <memory>

#include "headrace/core/device_runtime.h"
#include "headrace/core/error.h"
#include "headrace/ops/cuda/diffusion/denoise_step.h"
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

DeviceRuntime& runtime(int32_t index) {
  static std::array<std::unique_ptr<Runtime>, kMaxDevices> runtimes;
  static std::mutex mutex;
  HR_REQUIRE(index >= 0 && index < kMaxDevices, ErrorCode::kNoDevice, "cuda: device ", index, " is not there");
  const std::lock_guard lock(mutex);
  auto& one = runtimes[static_cast<size_t>(index)];
  if (!one) one = std::make_unique<Runtime>(index);
  return *one;
}

template <Told kTold>
constexpr OpSet ops_told(std::string_view name) {
  return {.name = name,
          .store_kv = Entry<store_kv, kTold>::run,
          .paged_attention = Entry<paged_attention, kTold>::run,
          .causal_conv1d = Entry<causal_conv1d, kTold>::run,
          .gated_delta_rule = Entry<gated_delta_rule, kTold>::run,
          .linear = Entry<linear, kTold>::run,
          .rms_norm = Entry<rms_norm, kTold>::run,
          .rotary_embedding = Entry<rotary_embedding, kTold>::run,
          .pointwise = Entry<pointwise, kTold>::run,
          .embedding = Entry<embedding, kTold>::run,
          .token_confidence = Entry<token_confidence, kTold>::run,
          .sample_tokens = Entry<sample_tokens, kTold>::run,
          .penalize_tokens = Entry<penalize_tokens, kTold>::run,
          .gdn_step = Entry<gdn_step, kTold>::run,
          .attention_step = Entry<attention_step, kTold>::run,
          .kv_len_buckets = Entry<kv_len_buckets, kTold>::run,
          .fused_linear = Entry<fused_linear, kTold>::run,
          .norm_rotary = Entry<norm_rotary, kTold>::run,
          .expert_routing = Entry<expert_routing, kTold>::run,
          .expert_mlp = Entry<expert_mlp, kTold>::run,
          .merge_tokens = Entry<merge_tokens, kTold>::run,
          .soft_embedding = Entry<soft_embedding, kTold>::run,
          .denoise_step = Entry<denoise_step, kTold>::run,
          .most_head_dim = kMostHeadDim,
          .most_gdn_key_dim = kMostGDNKeyDim,
          .most_conv_width = kMostConvWidth,
          .most_experts = kMostExperts,
          .most_vocab = kMostVocab};
}
constexpr OpSet kOps = ops_told<Told::kItsDevice>("cuda");

// Ops table for every device that the library has code for (limits.h): sm_80 machine code runs on 8.0, 8.6 and 8.9.
constexpr OpSet without_steps(OpSet set) {
  set.gdn_step = nullptr;  // these two exist on sm_90 only
  set.attention_step = nullptr;
  return set;
}
constexpr OpSet kBaselineOps = without_steps(ops_told<Told::kLeastDevice>("cuda_baseline"));

constexpr OpSet reference_of(OpSet set) {
  set.name = "cuda_reference";
  set.kv_len_buckets = nullptr;
  set.paged_attention = Entry<reference::paged_attention, Told::kLeastDevice>::run;
  return set;
}
constexpr OpSet kReferenceOps = reference_of(kBaselineOps);

constexpr OpSet chained_of(OpSet set) {
  set.name = "cuda_chained";
  set.linear = Entry<chained::linear, Told::kItsDevice>::run;
  set.fused_linear = Entry<chained::fused_linear, Told::kItsDevice>::run;
  return set;
}
constexpr OpSet kChainedOps = chained_of(kOps);

const OpSet& ops(std::string_view name) {
  for (const OpSet* set : {&kOps, &kBaselineOps, &kReferenceOps, &kChainedOps}) {
    if (set->name == name) return *set;
  }
  throw Error(
      ErrorCode::kUnsupported,
      str("cuda kernels: set '", name, "' is not built; built are: cuda, cuda_baseline, cuda_reference, cuda_chained"));
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
                                .runtime = runtime,
                                .ops = ops,
                                .devices = devices,
                                .free_bytes = free_bytes,
                                .driver_cuda = driver_cuda};

}  // namespace
}  // namespace headrace::cuda

extern "C" __attribute__((visibility("default"))) const headrace::CudaModule* headrace_cuda_module() {
  return &headrace::cuda::kModule;
}
