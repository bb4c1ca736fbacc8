// Attention on a device asks for cached keys while the kernels ahead of it still run; new ones it must wait for.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "headrace/attention/backend_registry.h"
#include "headrace/attention/radix_attention.h"
#include "headrace/base/device_runtime.h"
#include "headrace/batch/device_batch.h"
#include "headrace/kernels/cuda_module.h"
#include "support/all_close.h"
#include "support/device_mirror.h"

namespace headrace::testing_support {
namespace {

constexpr int32_t kRequests = 64, kCached = 2600, kHeads = 4, kDim = 128, kPage = 64;
constexpr int32_t kPagesEach = kCached / kPage + 1, kSlowRows = 1 << 17;

Tensor all_of(DeviceRuntime& device, const Shape& shape, double value) {
  Tensor host(DType::kBF16, shape);
  for (int64_t i = 0; i < host.numel(); ++i) set_element(host, i, value);
  return copied_to(device, std::move(host));
}

KVPool pool_of(DeviceRuntime& device, int32_t pages) {
  return KVPool({.groups = {{{kHeads, kDim, kDim}, {0}}}, .num_pages = pages, .page_size = kPage}, device);
}

// A store of many rows, which begins at once and ends late: kernels behind it come while it runs.
class SlowStore {
 public:
  explicit SlowStore(DeviceRuntime& device)
      : device_(device),
        pool_(pool_of(device, kSlowRows / kPage)),
        rows_(all_of(device, {kSlowRows, kHeads, kDim}, 1)),
        slots_(slots_of(device)) {}
  void run() const {
    cuda_module().ops("cuda").store_kv({.k = rows_, .v = rows_, .slots = slots_, .kv = pool_.layer(0)},
                                       {.stream = device_.stream()});
  }

 private:
  static Tensor slots_of(DeviceRuntime& device) {
    Tensor slots(DType::kI64, {kSlowRows});
    for (int64_t i = 0; i < kSlowRows; ++i) slots.data_as<int64_t>()[i] = kPage + i;
    return copied_to(device, std::move(slots));
  }

  DeviceRuntime& device_;
  KVPool pool_;
  Tensor rows_, slots_;
};

// So many requests of one new token each that the Hopper kernel takes them.
struct Batch {
  explicit Batch(AttentionBackend& backend) : page_table(DType::kI32, {kRequests, kPagesEach}) {
    host.attn_backend = &backend;
    auto* slots = write_slots.data_as<int64_t>();
    for (int32_t r = 0; r < kRequests; ++r) {
      host.attn.spans.push_back({.q_off = r, .q_len = 1, .ctx_len = kCached, .phys0 = kCached, .page_row = r});
      for (int32_t i = 0; i < kPagesEach; ++i)
        page_table.data_as<int32_t>()[r * kPagesEach + i] = 1 + r * kPagesEach + i;
      slots[r] = int64_t{1 + r * kPagesEach + kCached / kPage} * kPage + kCached % kPage;
    }
    host.attn.page_table = page_table, host.attn.write_slots = write_slots;
  }
  Tensor page_table, write_slots = Tensor(DType::kI64, {kRequests});
  ForwardBatch host{.mode = ForwardMode::kDecode};
};

// Cached keys and values are zeros; the new key of each request has nearly all of the weight.
TEST(KeysAheadOnADevice, NewOnesAreNotReadBeforeTheyAreStored) {
  if (mirrored_cuda_ops() == nullptr) GTEST_SKIP() << "no CUDA device";
  DeviceRuntime& device = cuda_module().runtime(0);
  const KVPool pool = pool_of(device, kRequests * kPagesEach);
  const auto backend = make_backend("cuda", device.device(),
                                    {.kv_pool = &pool, .runtime = &device, .context = {.stream = device.stream()}});
  Batch batch(*backend);
  DeviceBatch on_device({.max_requests = kRequests,
                         .max_tokens = kRequests,
                         .table_rows = kRequests,
                         .table_pages = kPagesEach,
                         .page_size = kPage},
                        device);
  const ForwardBatch& uploaded = on_device.upload(batch.host);
  backend->init_forward_metadata(uploaded);
  const RadixAttention layer({.num_heads = kHeads,
                              .head_dim = kDim,
                              .scaling = 1 / std::sqrt(static_cast<float>(kDim)),
                              .num_kv_heads = kHeads,
                              .layer_id = 0});
  const SlowStore slow(device);
  const Shape rows{kRequests, kHeads, kDim};
  const Tensor ones = all_of(device, rows, 1), out = all_of(device, rows, 0), got(DType::kBF16, rows);
  const double weight = std::exp(std::sqrt(kDim)) / (std::exp(std::sqrt(kDim)) + kCached);
  std::vector<Tensor> values;
  for (int i = 1; i <= 4; ++i) values.push_back(all_of(device, rows, i));
  for (size_t i = 0; i < values.size(); ++i) {  // the first call makes the plan; the others find it
    slow.run();
    layer.forward(ones, ones, values[i], uploaded, out);
    device.copy_to_host(got.data(), out.data(), static_cast<size_t>(out.bytes()));
    const Tensor want(DType::kBF16, rows);
    for (int64_t j = 0; j < want.numel(); ++j) set_element(want, j, weight * static_cast<double>(i + 1));
    EXPECT_TRUE(all_close(got, want, {.rel = 1e-2})) << "call " << i;
  }
}

}  // namespace
}  // namespace headrace::testing_support
