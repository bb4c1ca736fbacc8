// Backend of one ISA variant of the CPU kernels.
#pragma once
#include <memory>

#include "headrace/attention/backend_registry.h"
#include "headrace/ops/op_set.h"

namespace headrace::cpu {

// Returns the ISA variant named by config.kernel_set, or the best that this CPU supports. Error kUnsupported as
// select_kernel_set.
const OpSet& backend_ops(const BackendConfig& config);
std::unique_ptr<AttentionBackend> make_cpu_backend(const OpSet& ops, const BackendConfig& config);

}  // namespace headrace::cpu
