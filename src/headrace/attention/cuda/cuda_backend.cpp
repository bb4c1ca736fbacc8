#include "headrace/attention/cuda/cuda_backend.h"

#include <map>

#include "headrace/attention/cuda_graph_support.h"
#include "headrace/attention/op_set_backend.h"
#include "headrace/core/device_runtime.h"
#include "headrace/ops/cuda_module.h"

namespace headrace::cuda {
namespace {

// Kernels read lengths, slots and pages from the batch's DeviceMetadata, at fixed addresses of its DeviceBatch.
// DeviceBatch::upload refreshes that memory, so a replay needs nothing more.
class CudaBackend final : public OpSetBackend, public CudaGraphSupport {
 public:
  using OpSetBackend::OpSetBackend;

  CudaGraphSupport* cuda_graph_support() override { return this; }
  void init_cuda_graph_state(int32_t max_bs, int32_t max_num_tokens) override {
    max_bs_ = max_bs, max_num_tokens_ = max_num_tokens;  // nothing to allocate: see above
  }
  void init_forward_metadata_capture_cuda_graph(const ForwardBatch& batch, int32_t bucket) override {
    HR_REQUIRE(batch.batch_size() == bucket, ErrorCode::kInvalidArgument, "cuda graph: the batch has ",
               batch.batch_size(), " requests, expected ", bucket, ", padding included");
    HR_REQUIRE(bucket <= max_bs_ && batch.num_tokens() <= max_num_tokens_, ErrorCode::kInvalidArgument,
               "cuda graph: a batch of ", bucket, " requests and ", batch.num_tokens(), " tokens, expected up to ",
               max_bs_, " and ", max_num_tokens_, ", as init_cuda_graph_state was told");
    captured_[bucket] = batch.attn.on_device != nullptr ? batch.attn.on_device->spans : nullptr;
    init_forward_metadata(batch);
  }
  void init_forward_metadata_replay_cuda_graph(const ForwardBatch& batch, int32_t bucket) override {
    const auto captured = captured_.find(bucket);
    HR_REQUIRE(captured != captured_.end() && batch.attn.on_device != nullptr &&
                   batch.attn.on_device->spans == captured->second,
               ErrorCode::kInvalidArgument, "cuda graph: a batch of ", bucket,
               " requests is not in the memory that its graph was captured with");
    init_forward_metadata(batch);
  }
  std::vector<int32_t> kv_len_buckets(const ForwardBatch& batch, const RadixAttentionConfig& layer,
                                      DType dtype) const override {
    return kv_len_buckets_of(batch, layer, dtype);
  }

 private:
  int32_t max_bs_ = 0, max_num_tokens_ = 0;
  std::map<int32_t, const KeySpan*> captured_;
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
  const OpSet& of_impl = impl == AttnImpl::kReference ? cuda_module().ops("cuda_reference") : ops;
  return std::make_unique<CudaBackend>(ops.name, of_impl, *config.kv_pool, config.context, impl, *config.runtime);
}

}  // namespace headrace::cuda
