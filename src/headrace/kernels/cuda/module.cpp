// The side library's one exported symbol.
#include <array>
#include <memory>

#include "headrace/base/memory_need.h"
#include "headrace/kernels/cuda/block_step.h"
#include "headrace/kernels/cuda/limits.h"
#include "headrace/kernels/cuda/ops.h"
#include "headrace/kernels/cuda/runtime.h"
#include "headrace/kernels/cuda_module.h"

namespace headrace::cuda {
namespace {

constexpr int32_t kMaxDevices = 64;

DeviceRuntime& runtime(int32_t index) {
  static std::array<std::unique_ptr<Runtime>, kMaxDevices> runtimes;
  static std::mutex mutex;
  HR_REQUIRE(index >= 0 && index < kMaxDevices, ErrorCode::kNoDevice, "cuda: device ", index, " is not there");
  const std::lock_guard lock(mutex);
  auto& one = runtimes[static_cast<size_t>(index)];
  if (!one) {
    one = with_need({.what = "the memory that kernels work in", .advice = "another device, or end what fills this one"},
                    [index] { return std::make_unique<Runtime>(index); });
  }
  return *one;
}

constexpr OpSet kOps = {.name = "cuda",
                        .store_kv = store_kv,
                        .paged_attention = paged_attention,
                        .causal_conv1d = causal_conv1d,
                        .gated_delta_rule = gated_delta_rule,
                        .linear = linear,
                        .rms_norm = rms_norm,
                        .rotary_embedding = rotary_embedding,
                        .pointwise = pointwise,
                        .embedding = embedding,
                        .token_confidence = token_confidence,
                        .sample_tokens = sample_tokens,
                        .gdn_step = gdn_step,
                        .attention_step = attention_step,
                        .fused_linear = fused_linear,
                        .norm_rotary = norm_rotary,
                        .expert_routing = expert_routing,
                        .expert_mlp = expert_mlp,
                        .merge_tokens = merge_tokens,
                        .soft_embedding = soft_embedding,
                        .block_step = block_step,
                        .most_head_dim = kMostHeadDim,
                        .most_gdn_key_dim = kMostGDNKeyDim,
                        .most_conv_width = kMostConvWidth};

// What every device from sm_80 on runs: the same table but for the ops that have kernels of a newer architecture.
constexpr OpSet baseline_of(OpSet set) {
  set.name = "cuda_baseline";
  set.paged_attention = baseline::paged_attention;
  set.gated_delta_rule = baseline::gated_delta_rule;
  set.expert_mlp = baseline::expert_mlp;
  set.gdn_step = nullptr;  // these two are Hopper's alone
  set.attention_step = nullptr;
  return set;
}
constexpr OpSet kBaselineOps = baseline_of(kOps);

constexpr OpSet chained_of(OpSet set) {
  set.name = "cuda_chained";
  set.linear = chained::linear;
  set.fused_linear = chained::fused_linear;
  return set;
}
constexpr OpSet kChainedOps = chained_of(kOps);

const OpSet& ops(std::string_view name) {
  for (const OpSet* set : {&kOps, &kBaselineOps, &kChainedOps}) {
    if (set->name == name) return *set;
  }
  throw Error(ErrorCode::kUnsupported,
              str("cuda kernels: set '", name, "' is not built; built are: cuda, cuda_baseline, cuda_chained"));
}

std::vector<std::string> devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) return {};
  std::vector<std::string> lines;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp p{};
    check_cuda(cudaGetDeviceProperties(&p, i), "cudaGetDeviceProperties");
    lines.push_back(str("cuda:", i, " ", p.name, ", ", p.totalGlobalMem >> 20, " MiB, sm_", p.major, p.minor));
  }
  return lines;
}

constexpr CudaModule kModule = {.version = kCudaModuleVersion, .runtime = runtime, .ops = ops, .devices = devices};

}  // namespace
}  // namespace headrace::cuda

extern "C" __attribute__((visibility("default"))) const headrace::CudaModule* headrace_cuda_module() {
  return &headrace::cuda::kModule;
}
