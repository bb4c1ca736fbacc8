#include "headrace/attention/reference/reference_backend.h"

#include "headrace/attention/op_set_backend.h"
#include "headrace/ops/reference/reference_ops.h"

namespace headrace::reference {

const OpSet& backend_ops(const BackendConfig& config) {
  HR_REQUIRE(!config.kernel_set, ErrorCode::kUnsupported, "attention backend 'reference' has no kernel sets; '",
             *config.kernel_set, "' was asked for");
  return ops();
}

std::unique_ptr<AttentionBackend> make_reference_backend(const OpSet& op_set, const BackendConfig& config) {
  const AttnImpl impl = config.attn_impl.value_or(AttnImpl::kReference);
  HR_REQUIRE(impl == AttnImpl::kReference, ErrorCode::kUnsupported, "attention backend 'reference': implementation '",
             name_of(impl), "' is not built; built is: reference");
  return std::make_unique<OpSetBackend>("reference", op_set, *config.kv_pool, config.context, impl);
}

}  // namespace headrace::reference
