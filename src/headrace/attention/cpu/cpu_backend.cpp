#include "headrace/attention/cpu/cpu_backend.h"

#include "headrace/attention/op_set_backend.h"
#include "headrace/ops/cpu/dispatch.h"

namespace headrace::cpu {

const OpSet& backend_ops(const BackendConfig& config) {
  if (!config.kernel_set) return select_kernel_set();
  return select_kernel_set(*config.kernel_set);
}

std::unique_ptr<AttentionBackend> make_cpu_backend(const OpSet& ops, const BackendConfig& config) {
  const AttnImpl impl = config.attn_impl.value_or(AttnImpl::kGrouped);
  return std::make_unique<OpSetBackend>("cpu", ops_of(impl, ops), *config.kv_pool, config.context, impl);
}

}  // namespace headrace::cpu
