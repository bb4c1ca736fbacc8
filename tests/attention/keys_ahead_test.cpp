// Attention on a device asks for cached keys while the kernel ahead of it still runs; new ones it must wait for.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "headrace/attention/backend_registry.h"
#include "headrace/attention/radix_attention.h"
#include "headrace/batch/device_batch.h"
#include "headrace/core/device_runtime.h"
#include "headrace/ops/cuda_module.h"
#include "support/all_close.h"
#include "support/device_mirror.h"
#include "support/gpu.h"

namespace headrace::testing_support {
namespace {

constexpr int32_t kHeads = 4, kDim = 128, kPage = 64;  // of keys and values

Tensor all_of(DeviceRuntime& device, int64_t rows, int64_t heads, double value) {
  Tensor host(DType::kBF16, {rows, heads, kDim});
  for (int64_t i = 0; i < host.numel(); ++i) set_element(host, i, value);
  return copied_to(device, std::move(host));
}

// Requests of one size over a pool of zeros, each with pages of its own. Queries and new keys are ones.
class Requests {
 public:
  Requests(DeviceRuntime& device, int32_t heads, int32_t count, int32_t cached, int32_t new_tokens)
      : device_(device),
        cached_(cached),
        pages_each_((cached + new_tokens + kPage - 1) / kPage),
        pool_({.groups = {{{kHeads, kDim, kDim}, {0}}}, .num_pages = count * pages_each_, .page_size = kPage}, device),
        backend_(make_backend("cuda", device.device(),
                              {.kv_pool = &pool_, .runtime = &device, .context = {.stream = device.stream()}})),
        on_device_({.max_requests = count,
                    .max_tokens = count * new_tokens,
                    .table_rows = count,
                    .table_pages = pages_each_,
                    .page_size = kPage},
                   device),
        q_(all_of(device, count * new_tokens, heads, 1)),
        k_(all_of(device, count * new_tokens, kHeads, 1)),
        out_(all_of(device, count * new_tokens, heads, -1)),
        layer_({.num_heads = heads,
                .head_dim = kDim,
                .scaling = 1 / std::sqrt(static_cast<float>(kDim)),
                .num_kv_heads = kHeads,
                .layer_id = 0}) {
    const Tensor page_table(DType::kI32, {count, pages_each_}), slots(DType::kI64, {count * new_tokens});
    ForwardBatch host{.mode = new_tokens == 1 ? ForwardMode::kDecode : ForwardMode::kExtend,
                      .attn_backend = backend_.get()};
    for (int32_t r = 0; r < count; ++r) {
      host.attn.spans.push_back(
          {.q_off = r * new_tokens, .q_len = new_tokens, .ctx_len = cached, .phys0 = cached, .page_row = r});
      const int32_t first = 1 + (count - 1 - r) * pages_each_;  // the last request has the first pages
      for (int32_t i = 0; i < pages_each_; ++i) page_table.data_as<int32_t>()[r * pages_each_ + i] = first + i;
      for (int32_t i = 0; i < new_tokens; ++i) {
        slots.data_as<int64_t>()[r * new_tokens + i] = int64_t{first} * kPage + cached + i;
      }
    }
    host.attn.page_table = page_table, host.attn.write_slots = slots;
    batch_ = &on_device_.upload(host);
    backend_->init_forward_metadata(*batch_);
  }

  void store_and_attend(const TensorView& values, const TensorView& out) const {
    layer_.forward(q_, k_, values, *batch_, out);
  }
  void store_and_attend(const TensorView& values) const { store_and_attend(values, out_); }
  void attend_to_what_is_stored() const { layer_.forward(q_, {}, {}, *batch_, out_); }
  // Where the values of each request's new token lie in the pool, as the first of so many heads for each of theirs: the
  // others are unseen slots, or cached zeros of the next head.
  TensorView new_values(int64_t for_each) const {
    const TensorView v = pool_.layer(0).v;
    const TensorView first = v.select(1 + cached_ / kPage);  // [heads, slots, dim] of the first request's page
    return {first.narrow(1, cached_ % kPage, cached_ % kPage + 1).data(),
            v.dtype(),
            {static_cast<int64_t>(batch_->attn.spans.size()), kHeads * for_each, kDim},
            {pages_each_ * v.stride(0), v.stride(1) / for_each, 1},
            v.device()};
  }
  double largest_result() const {
    const Tensor host(DType::kBF16, out_.shape());
    device_.copy_to_host(host.data(), out_.data(), static_cast<size_t>(out_.bytes()));
    double largest = 0;
    for (int64_t i = 0; i < host.numel(); ++i) largest = std::max(largest, std::abs(element_as_double(host, i)));
    return largest;
  }

 private:
  DeviceRuntime& device_;
  int32_t cached_, pages_each_;
  KVPool pool_;
  std::unique_ptr<AttentionBackend> backend_;
  DeviceBatch on_device_;
  Tensor q_, k_, out_;
  const ForwardBatch* batch_ = nullptr;  // of on_device_
  RadixAttention layer_;
};

// The kernel ahead is a prompt's attention: 136 long pieces, so that four multiprocessors are at its first tokens for
// as long again as the others were at the rest, and the next kernel is on those by then. It writes its results, zeros,
// where the new values of that one's requests lie, those of its first tokens for the last requests, which blocks take
// first, the second group of 4096 keys before the other: two tiles, which hold the new key. It has nearly all of the
// weight.
TEST(KeysAheadOnADevice, NewOnesAreNotReadBeforeTheKernelAheadHasEnded) {
  if (mirrored_cuda_ops() == nullptr) GTEST_SKIP() << "no CUDA device";
  constexpr int32_t kGroup = 8, kCount = 136 / kHeads * 128 / kGroup, kCached = 4196;
  DeviceRuntime& device = testing_support::gpu();
  const Requests prompt(device, kHeads * kGroup, 1, 30720, kCount), decoding(device, kHeads, kCount, kCached, 1);
  const Tensor zeros = all_of(device, kCount, kHeads, 0), twos = all_of(device, kCount, kHeads, 2);
  const double weight = std::exp(std::sqrt(kDim)) / (std::exp(std::sqrt(kDim)) + kCached);
  for (int call = 0; call < 3; ++call) {
    decoding.store_and_attend(twos);  // makes the plan, or finds it
    EXPECT_NEAR(decoding.largest_result(), 2 * weight, 0.02) << "call " << call;
    prompt.store_and_attend(zeros, decoding.new_values(kGroup));
    decoding.attend_to_what_is_stored();
    EXPECT_NEAR(decoding.largest_result(), 0, 1e-3) << "call " << call;
  }
}

}  // namespace
}  // namespace headrace::testing_support
