// The kernels of one CPU instruction set as a backend.
#pragma once
#include <memory>

#include "headrace/attention/backend_registry.h"
#include "headrace/ops/op_set.h"

namespace headrace::cpu {

// The set that config.kernel_set names, or the best that runs here. Error kUnsupported as select_kernel_set.
const OpSet& backend_ops(const BackendConfig& config);
std::unique_ptr<AttentionBackend> make_cpu_backend(const OpSet& ops, const BackendConfig& config);

}  // namespace headrace::cpu
