#include "headrace/attention/backend_registry.h"

#include <array>

#include "headrace/attention/cpu/cpu_backend.h"
#include "headrace/attention/cuda/cuda_backend.h"
#include "headrace/attention/decode_batch.h"
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

const OpSet& kernels_of(const Row& row, const BackendConfig& config) {
  return config.ops != nullptr ? *config.ops : row.ops(config);
}

// Stand-in for the KV pool of a model with Gated DeltaNet layers only.
const KVPool& pool_without_layers() {
  static const KVPool pool({.num_pages = 1});
  return pool;
}

std::unique_ptr<AttentionBackend> with_states(std::unique_ptr<AttentionBackend> full, const OpSet& ops,
                                              const BackendConfig& config, DeviceRuntime& runtime) {
  if (config.gdn_pool == nullptr) return full;
  auto gdn = std::make_unique<GDNAttnBackend>(*config.gdn_pool, ops, config.context, config.max_tokens, runtime);
  return std::make_unique<HybridAttnBackend>(std::move(full), std::move(gdn), config.full_attn_layer_ids);
}

// Gives a backend with graphs the request table of the configuration, if there is one.
void set_decode_pools(AttentionBackend& backend, const BackendConfig& config, DeviceRuntime& runtime) {
  CudaGraphSupport* graphs = backend.cuda_graph_support();
  if (config.req_to_token_pool == nullptr || graphs == nullptr) return;
  const int32_t page_size = config.req_to_token_pool->page_size();
  HR_REQUIRE(config.kv_pool == nullptr || config.kv_pool->page_size() == page_size, ErrorCode::kInvalidArgument,
             "attention backend '", backend.name(), "': the request table has pages of ", page_size,
             " tokens, the KV pool of ", config.kv_pool != nullptr ? config.kv_pool->page_size() : 0);
  using States = DecodeBatchPools::States;
  graphs->set_decode_pools({.requests = config.req_to_token_pool,
                            .states = config.gdn_pool != nullptr ? States::kRecurrent : States::kNone,
                            .runtime = &runtime,
                            .backend = &backend});
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
  return kernels_of(find(name, device), config);
}

std::unique_ptr<AttentionBackend> make_backend(std::string_view name, Device device, const BackendConfig& config) {
  const Row& row = find(name, device);
  HR_REQUIRE(config.kv_pool != nullptr || (config.gdn_pool != nullptr && config.full_attn_layer_ids.empty()),
             ErrorCode::kInvalidArgument, "attention backend '", row.name, "': a KV pool is needed");
  HR_REQUIRE(config.context.threads >= 1, ErrorCode::kInvalidArgument, "attention backend '", row.name,
             "': threads is ", config.context.threads, ", expected 1 or more");
  const OpSet& ops = kernels_of(row, config);
  BackendConfig full_config = config;
  if (config.kv_pool == nullptr) full_config.kv_pool = &pool_without_layers();
  DeviceRuntime& runtime = config.runtime != nullptr ? *config.runtime : cpu_runtime();
  auto backend = with_states(row.make(ops, full_config), ops, config, runtime);
  set_decode_pools(*backend, config, runtime);
  return backend;
}

}  // namespace headrace
