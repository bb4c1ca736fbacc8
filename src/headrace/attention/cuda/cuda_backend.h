// The kernels of the CUDA side library as a backend.
#pragma once
#include <memory>

#include "headrace/attention/backend_registry.h"
#include "headrace/ops/op_set.h"

namespace headrace::cuda {

// The sets "cuda" and "cuda_baseline". Error kUnsupported when config.kernel_set is given: those are a CPU's. Others as
// cuda_module and CudaModule::ops.
const OpSet& backend_ops(const BackendConfig& config);
const OpSet& baseline_ops(const BackendConfig& config);
// Called after its set. Error kInvalidArgument when config has no runtime of a CUDA device.
std::unique_ptr<AttentionBackend> make_cuda_backend(const OpSet& ops, const BackendConfig& config);

}  // namespace headrace::cuda
