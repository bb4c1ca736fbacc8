#include "bench/host_step.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <vector>

#include "headrace/attention/backend_registry.h"
#include "headrace/attention/cuda_graph_support.h"
#include "headrace/core/device_runtime.h"
#include "headrace/engine/batch_padding.h"

namespace headrace::bench {
namespace {

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median_of_calls(const std::function<void()>& work) {
  std::vector<double> seconds;
  for (int i = 0; i < 21; ++i) seconds.push_back(seconds_of(work));
  std::sort(seconds.begin(), seconds.end());
  return seconds[10];
}

// The batch as an engine brings it, with a token of each request.
class EngineBatch {
 public:
  explicit EngineBatch(const ForwardBatch& batch)
      : ids_(static_cast<size_t>(batch.batch_size()), 1), write_slots_(ids_.size(), KVPool::kPaddingSlot) {
    for (const KeySpan& span : batch.attn.spans) positions_.push_back(span.ctx_len);
    const int64_t count = batch.batch_size();
    batch_ = batch;
    batch_.mode = ForwardMode::kDecode;
    batch_.input_ids = TensorView(ids_.data(), DType::kI32, {count});
    batch_.positions = TensorView(positions_.data(), DType::kI32, {count});
    batch_.attn.write_slots = TensorView(write_slots_.data(), DType::kI64, {count});
    batch_.logits_rows.resize(ids_.size());
    std::iota(batch_.logits_rows.begin(), batch_.logits_rows.end(), 0);
  }
  const ForwardBatch& batch() const { return batch_; }

 private:
  std::vector<int32_t> ids_, positions_;
  std::vector<int64_t> write_slots_;
  ForwardBatch batch_;
};

double time_step(const ForwardBatch& batch, const KVPool& pool, DeviceBatch& placed, DeviceRuntime& device,
                 const OpContext& context) {
  const auto size = static_cast<int32_t>(batch.batch_size());
  const std::unique_ptr<AttentionBackend> backend =
      make_backend("cuda", device.device(), {.kv_pool = &pool, .runtime = &device, .context = context});
  CudaGraphSupport& support = *backend->cuda_graph_support();
  BatchPadding padding(BatchPadding::States::kNone, support.get_cuda_graph_seq_len_fill_value());
  support.init_cuda_graph_state(size, size);
  support.init_forward_metadata_capture_cuda_graph(placed.upload(padding.fill(batch, size)), size);
  return median_of_calls([&] {
    const ForwardBatch& on_device = placed.upload(padding.fill(batch, size));
    support.init_forward_metadata_replay_cuda_graph(on_device, static_cast<int32_t>(on_device.batch_size()));
  });
}

}  // namespace

HostStep time_host_step(const ForwardBatch& batch, const KVPool& pool, DeviceBatch& placed, DeviceRuntime& device,
                        const OpContext& context) {
  HostStep measured;
  measured.first_upload_s = seconds_of([&] { placed.upload(batch); });
  measured.upload_s = median_of_calls([&] { placed.upload(batch); });
  const bool decode = std::ranges::all_of(batch.attn.spans, [](const KeySpan& span) { return span.q_len == 1; });
  if (decode) measured.step_s = time_step(EngineBatch(batch).batch(), pool, placed, device, context);
  return measured;
}

}  // namespace headrace::bench
