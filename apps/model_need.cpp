#include "model_need.h"

#include "headrace/cache/gdn_pool.h"
#include "headrace/cache/kv_pool.h"

namespace headrace::app {

ModelNeed need_of(const ModelInfo& info, std::optional<DType> kv_dtype) {
  const auto pages = [&](int32_t count) -> KVPoolConfig {
    return {
        .groups = info.kv_groups, .num_pages = count, .page_size = kPageSize, .dtype = kv_dtype.value_or(info.dtype)};
  };
  ModelNeed need{.weights = info.weight_bytes};
  need.per_token = (KVPool::bytes_for(pages(2)) - KVPool::bytes_for(pages(1))) / kPageSize;
  if (info.num_gdn_layers > 0) {
    GDNPoolConfig states = info.gdn;
    states.num_slots = 1;
    need.per_request = GDNPool::bytes_for(states);
  }
  return need;
}

}  // namespace headrace::app
