#include "headrace/llm/model_need.h"

#include <algorithm>
#include <limits>

#include "headrace/cache/gdn_pool.h"
#include "headrace/cache/kv_pool.h"
#include "headrace/core/host_memory.h"
#include "headrace/ops/cuda_module.h"
#include "headrace/ops/device_registry.h"

namespace headrace {

ModelNeed need_of(const ModelInfo& info, std::optional<DType> kv_dtype) {
  const auto pages = [&](int32_t count) -> KVPoolConfig {
    return {.groups = info.kv_groups,
            .num_pages = count,
            .page_size = kDefaultPageSize,
            .dtype = kv_dtype.value_or(info.dtype)};
  };
  ModelNeed need{.weights = info.weight_bytes};
  need.per_token = (KVPool::bytes_for(pages(2)) - KVPool::bytes_for(pages(1))) / kDefaultPageSize;
  if (info.num_gdn_layers > 0) {
    GDNPoolConfig states = info.gdn;
    states.num_slots = 1;
    need.per_request = GDNPool::bytes_for(states);
  }
  return need;
}

int32_t default_num_seqs(const ModelDescription& model, const LLMOptions& options) {
  constexpr int64_t kTokens = 1024, kMostOnCpu = 32, kMostOnDevice = 256;
  const ModelInfo info = options.random_weights ? stated_info(model, {.dtype = options.dtype})
                                                : model_summary(model, {.dtype = options.dtype}).info;
  const Device device = open_device(options.device, options.log)->device();
  const bool on_cpu = device.type == DeviceType::kCPU;
  const int64_t free = on_cpu ? available_host_memory().value_or(std::numeric_limits<int64_t>::max())
                              : cuda_module().free_bytes(device.index);
  const ModelNeed need = need_of(info, options.kv_dtype);
  const int64_t budget = options.kv_cache_memory_bytes.value_or((free - need.weights) / 2);
  const int64_t fitting = budget / std::max<int64_t>(1, need.per_request + kTokens * need.per_token);
  return static_cast<int32_t>(std::clamp<int64_t>(fitting, 1, on_cpu ? kMostOnCpu : kMostOnDevice));
}

}  // namespace headrace
