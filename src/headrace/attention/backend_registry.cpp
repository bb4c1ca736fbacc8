#include "headrace/attention/backend_registry.h"

#include <array>

#include "headrace/attention/cpu/cpu_backend.h"
#include "headrace/attention/cuda/cuda_backend.h"
#include "headrace/attention/gdn_attn_backend.h"
#include "headrace/attention/hybrid_attn_backend.h"
#include "headrace/attention/reference/reference_backend.h"
#include "headrace/core/device_runtime.h"

namespace headrace {
namespace {

struct Row {
  std::string_view name;
  DeviceType device;
  const OpSet& (*ops)(const BackendConfig&);
  std::unique_ptr<AttentionBackend> (*make)(const OpSet&, const BackendConfig&);
};

// Best first. A new backend is one folder and one row.
constexpr std::array kBackends = {
    Row{"cuda", DeviceType::kCUDA, cuda::backend_ops, cuda::make_cuda_backend},
    Row{"cuda_baseline", DeviceType::kCUDA, cuda::baseline_ops, cuda::make_cuda_backend},
    Row{"cpu", DeviceType::kCPU, cpu::backend_ops, cpu::make_cpu_backend},
    Row{"reference", DeviceType::kCPU, reference::backend_ops, reference::make_reference_backend},
};

const Row& find(std::string_view name, Device device) {
  std::string built;
  for (const Row& row : kBackends) {
    if (row.device == device.type && (name == "auto" || name == row.name)) return row;
    if (row.device == device.type) built += (built.empty() ? "" : ", ") + std::string(row.name);
  }
  throw Error(ErrorCode::kUnsupported, str("attention backend '", name, "' is not built for device ", to_string(device),
                                           "; built are: ", built));
}

// Stand-in for the KV pool of a model with Gated DeltaNet layers only.
const KVPool& pool_without_layers() {
  static const KVPool pool({.num_pages = 1});
  return pool;
}

}  // namespace

std::vector<std::string_view> backend_names(Device device) {
  std::vector<std::string_view> names;
  for (const Row& row : kBackends) {
    if (row.device == device.type) names.push_back(row.name);
  }
  return names;
}

const OpSet& backend_ops(std::string_view name, Device device, const BackendConfig& config) {
  return find(name, device).ops(config);
}

std::unique_ptr<AttentionBackend> make_backend(std::string_view name, Device device, const BackendConfig& config) {
  const Row& row = find(name, device);
  HR_REQUIRE(config.kv_pool != nullptr || (config.gdn_pool != nullptr && config.full_attn_layer_ids.empty()),
             ErrorCode::kInvalidArgument, "attention backend '", row.name, "': a KV pool is needed");
  HR_REQUIRE(config.context.threads >= 1, ErrorCode::kInvalidArgument, "attention backend '", row.name,
             "': threads is ", config.context.threads, ", expected 1 or more");
  const OpSet& ops = row.ops(config);
  BackendConfig full_config = config;
  if (config.kv_pool == nullptr) full_config.kv_pool = &pool_without_layers();
  auto full = row.make(ops, full_config);
  if (config.gdn_pool == nullptr) return full;
  DeviceRuntime& runtime = config.runtime != nullptr ? *config.runtime : cpu_runtime();
  auto gdn = std::make_unique<GDNAttnBackend>(*config.gdn_pool, ops, config.context, config.max_tokens, runtime);
  return std::make_unique<HybridAttnBackend>(std::move(full), std::move(gdn), config.full_attn_layer_ids);
}

}  // namespace headrace
