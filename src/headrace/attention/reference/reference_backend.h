// The reference backend: every op in double precision, complete and slow. Tests use it as the oracle.
#pragma once
#include <memory>

#include "headrace/attention/backend_registry.h"
#include "headrace/ops/op_set.h"

namespace headrace::reference {

const OpSet& backend_ops(const BackendConfig& config);
std::unique_ptr<AttentionBackend> make_reference_backend(const OpSet& ops, const BackendConfig& config);

}  // namespace headrace::reference
