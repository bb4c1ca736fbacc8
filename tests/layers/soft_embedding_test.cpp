// The second input of a self-conditioned model: which rows it has, what they are, and the same on a device.
#include "headrace/layers/soft_embedding.h"
#include "headrace/core/device_runtime.h"

#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "headrace/batch/device_batch.h"
#include "headrace/ops/cpu/dispatch.h"
#include "headrace/ops/cuda_module.h"
#include "support/all_close.h"
#include "support/device_mirror.h"
#include "support/gpu.h"
#include "support/random.h"

namespace headrace::testing_support {
namespace {

LayerContext host_context(DType dtype = DType::kF32) {
  return {.ops = &cpu::select_kernel_set(), .op = {.threads = 2}, .dtype = dtype};
}

ForwardBatch batch_of(int64_t tokens, const SelfConditioning& signal) {
  return {.attn = {.spans = {{.q_len = static_cast<int32_t>(tokens)}}}, .soft = {.self_conditioning = signal}};
}

Tensor mask_of(const std::vector<int>& marks) {
  Tensor mask(DType::kU8, {static_cast<int64_t>(marks.size())});
  for (size_t i = 0; i < marks.size(); ++i) set_element(mask, static_cast<int64_t>(i), marks[i]);
  return mask;
}

TEST(SoftEmbeddings, AreTheExpectedEmbeddingsOfMarkedRowsAndZerosElsewhere) {
  const Tensor mask = mask_of({0, 1, 1}), logits(DType::kF32, {2, 3}), table(DType::kF32, {3, 2});
  for (int64_t i = 0; i < 6; ++i) set_element(table, i, static_cast<double>(i + 1));  // (1 2) (3 4) (5 6)
  for (int64_t v = 0; v < 3; ++v) set_element(logits, v, 7);                          // even, then 1 : 3 : 0
  set_element(logits, 3, 0), set_element(logits, 4, std::log(3.0)), set_element(logits, 5, -1e30);
  const Tensor got = soft_embeddings(host_context(), batch_of(3, {mask, logits}), table, 2);
  const Tensor want(DType::kF32, {3, 2});
  const double values[] = {0, 0, 6, 8, 5, 7};
  for (int64_t i = 0; i < 6; ++i) set_element(want, i, values[i]);
  EXPECT_TRUE(all_close(got, want, {.abs = 1e-5}));
}

TEST(SoftEmbeddings, RefuseAnotherNumberOfRowsOrColumns) {
  const Tensor table = Tensor::zeros(DType::kF32, {3, 2}), mask = mask_of({0, 1, 1});
  const Tensor few = Tensor::zeros(DType::kF32, {1, 3}), narrow = Tensor::zeros(DType::kF32, {2, 2});
  EXPECT_THROW(soft_embeddings(host_context(), batch_of(3, {mask, few}), table, 1), Error);
  EXPECT_THROW(soft_embeddings(host_context(), batch_of(3, {mask, narrow}), table, 1), Error);
}

// More rows and dimensions than one tile has, none of them a multiple of it; vocabularies that end within a chunk of
// the tensor cores' and that do not.
TEST(SoftEmbeddings, OnADeviceAreThoseOfTheHost) {
  if (mirrored_cuda_ops() == nullptr) GTEST_SKIP() << "no CUDA device";
  constexpr int64_t kManyTokens = 300;
  DeviceRuntime& device = testing_support::gpu();
  for (const auto& [type, vocab, hidden] :
       {std::tuple(DType::kF32, 501, 70), std::tuple(DType::kBF16, 501, 70), std::tuple(DType::kF32, 1184, 136),
        std::tuple(DType::kBF16, 1184, 136), std::tuple(DType::kBF16, 64, 8)}) {
    Random random(5);
    std::vector<int> marks;
    int64_t rows = 0;
    for (int64_t t = 0; t < kManyTokens; ++t) rows += marks.emplace_back(t % 7 == 3 || t > 200 ? 1 : 0);
    const Tensor mask = mask_of(marks), logits = random_tensor(random, DType::kF32, {rows, vocab}, 3);
    Tensor table = random_tensor(random, type, {vocab, hidden});
    const ForwardBatch host = batch_of(kManyTokens, {mask, logits});
    const Tensor want = soft_embeddings(host_context(type), host, table, 3);
    DeviceBatch there({.max_requests = 1, .max_tokens = kManyTokens, .table_rows = 1, .table_pages = 1}, device);
    const ForwardBatch& placed = there.upload(host);
    const LayerContext context{
        .ops = &cuda_module().ops("cuda"), .op = {.stream = device.stream()}, .dtype = type, .runtime = &device};
    const Tensor moved = copied_to(device, std::move(table));
    const Tensor out = soft_embeddings(context, placed, moved, 3), got(type, out.shape());
    device.copy_to_host(got.data(), out.data(), static_cast<size_t>(got.bytes()));
    EXPECT_TRUE(all_close(got, want, {.abs = type == DType::kF32 ? 1e-5 : 0.05}));
  }
}

}  // namespace
}  // namespace headrace::testing_support
