#include "headrace/attention/cuda/cuda_backend.h"

#include "headrace/attention/op_set_backend.h"
#include "headrace/kernels/cuda_module.h"

namespace headrace::cuda {

const OpSet& backend_ops(const BackendConfig& config) {
  return cuda_module().ops(config.kernel_set ? std::string_view(*config.kernel_set) : "cuda");
}

std::unique_ptr<AttentionBackend> make_cuda_backend(const OpSet& ops, const BackendConfig& config) {
  HR_REQUIRE(config.runtime != nullptr && config.runtime->device().type == DeviceType::kCUDA,
             ErrorCode::kInvalidArgument, "attention backend 'cuda': the runtime of a CUDA device is needed");
  return std::make_unique<OpSetBackend>("cuda", ops, *config.kv_pool, config.context, *config.runtime);
}

}  // namespace headrace::cuda
