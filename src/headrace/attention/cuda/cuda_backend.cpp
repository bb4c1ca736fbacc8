#include "headrace/attention/cuda/cuda_backend.h"

#include "headrace/attention/cuda_graph_support.h"
#include "headrace/attention/op_set_backend.h"
#include "headrace/core/device_runtime.h"
#include "headrace/ops/cuda_module.h"

namespace headrace::cuda {
namespace {

// DeviceBatch::upload refreshes all that a graph's kernels read, so a replay needs no more than a plan.
class CudaBackend final : public OpSetBackend, public CudaGraphSupport {
 public:
  using OpSetBackend::OpSetBackend;
  CudaGraphSupport* cuda_graph_support() override { return this; }
  std::vector<int32_t> kv_len_buckets(const ForwardBatch& batch, const RadixAttentionConfig& layer,
                                      DType dtype) const override {
    return kv_len_buckets_of(batch, layer, dtype);
  }

 private:
  void init_graph_state(int32_t, int32_t) override {}
  void plan_capture(const ForwardBatch& batch, int32_t) override { init_forward_metadata(batch); }
  void plan_replay(const ForwardBatch& batch, int32_t) override { init_forward_metadata(batch); }
};

// Returns the ops `name` of the CUDA library, after a check that needs no library. Sampling on the host uses the best
// ISA variant.
const OpSet& ops_called(std::string_view name, const BackendConfig& config) {
  HR_REQUIRE(!config.kernel_set, ErrorCode::kUnsupported, "attention backend '", name, "' has no kernel sets; '",
             *config.kernel_set,
             "' was asked for: they are a CPU's (--device cpu), and --backend cuda or cuda_baseline ",
             "chooses a device's kernels");
  return cuda_module().ops(name);
}

}  // namespace

const OpSet& backend_ops(const BackendConfig& config) { return ops_called("cuda", config); }

const OpSet& baseline_ops(const BackendConfig& config) { return ops_called("cuda_baseline", config); }

std::unique_ptr<AttentionBackend> make_cuda_backend(const OpSet& ops, const BackendConfig& config) {
  HR_REQUIRE(config.runtime != nullptr && config.runtime->device().type == DeviceType::kCUDA,
             ErrorCode::kInvalidArgument, "attention backend '", ops.name, "': the runtime of a CUDA device is needed");
  const AttnImpl impl = config.attn_impl.value_or(AttnImpl::kGrouped);
  const bool replaced = impl == AttnImpl::kReference && config.ops == nullptr;
  const OpSet& of_impl = replaced ? cuda_module().ops("cuda_reference") : ops;
  return std::make_unique<CudaBackend>(ops.name, of_impl, *config.kv_pool, config.context, impl, *config.runtime);
}

}  // namespace headrace::cuda
