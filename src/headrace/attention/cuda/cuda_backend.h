// Backend of the CUDA library's kernels.
#pragma once
#include <memory>

#include "headrace/attention/backend_registry.h"
#include "headrace/ops/op_set.h"

namespace headrace::cuda {

// The ops "cuda" and "cuda_baseline". Error kUnsupported if config.kernel_set is given, which names ISA variants of a
// CPU; others as cuda_module and CudaModule::ops.
const OpSet& backend_ops(const BackendConfig& config);
const OpSet& baseline_ops(const BackendConfig& config);
// Call after loading its ops. Error kInvalidArgument if config has no runtime of a CUDA device.
std::unique_ptr<AttentionBackend> make_cuda_backend(const OpSet& ops, const BackendConfig& config);

}  // namespace headrace::cuda
