// Soft tokens: which rows change, to what, and what is refused.
#include "headrace/layers/token_merge.h"
#include "headrace/core/device_runtime.h"

#include <gtest/gtest.h>

#include "headrace/batch/device_batch.h"
#include "headrace/ops/cuda_module.h"
#include "support/all_close.h"
#include "support/device_mirror.h"
#include "support/gpu.h"

namespace headrace {
namespace {

constexpr int64_t kVocab = 5, kHidden = 3, kTokens = 3, kCandidates = 2;

Tensor filled(DType dtype, const Shape& shape, const std::vector<double>& values) {
  Tensor out(dtype, shape);
  for (int64_t i = 0; i < out.numel(); ++i) set_element(out, i, values[static_cast<size_t>(i)]);
  return out;
}

struct Fixture {
  Tensor table{DType::kF32, {kVocab, kHidden}}, x = Tensor::zeros(DType::kF32, {kTokens, kHidden});
  Tensor mask = filled(DType::kU8, {kTokens}, {0, 1, 0}),
         ids = filled(DType::kI64, {kTokens, kCandidates}, {0, 0, 4, 2, 0, 0});
  Tensor probs = filled(DType::kF32, {kTokens, kCandidates}, {9, 9, 0.5, 0.25, 9, 9});
  Tensor residual = filled(DType::kF32, {kTokens}, {9, 0.25, 9});
  Fixture() {
    for (int64_t i = 0; i < table.numel(); ++i) set_element(table, i, static_cast<double>(i));
  }
  TokenMerge merge() const { return {mask, ids, probs, residual, 1}; }
};

TEST(TokenMerge, BlendsTheFlaggedRowsAndLeavesTheOthers) {
  const Fixture f;
  merge_tokens(f.merge(), f.table, f.x);
  // 0.5 E[4] + 0.25 E[2] + 0.25 E[mask = 1], where E[i] = 3i, 3i + 1, 3i + 2.
  const Tensor want = filled(DType::kF32, {kTokens, kHidden}, {0, 0, 0, 8.25, 9.25, 10.25, 0, 0, 0});
  EXPECT_TRUE(testing_support::bit_equal(f.x, want));
}

TEST(TokenMerge, ABlendMayBeAsLongAsItsPartsTogether) {
  Fixture f;
  TokenMerge merge = f.merge();
  merge.length = TokenMerge::Length::kOfParts;
  merge_tokens(merge, f.table, f.x);
  // |E[4]| / 2 + |E[2]| / 4 + |E[1]| / 4 = 11.2805 + 3.0516 + 1.7678, of a blend that is 16.0838 long.
  const Tensor want = filled(DType::kF32, {kTokens, kHidden}, {0, 0, 0, 8.2583, 9.2593, 10.2603, 0, 0, 0});
  EXPECT_TRUE(testing_support::all_close(f.x, want, {.abs = 1e-3, .rel = 0}));
}

TEST(TokenMerge, RefusesIdsOutsideTheTableAndShapesThatDoNotFit) {
  const Fixture f;
  TokenMerge outside = f.merge();
  outside.mask_token_id = kVocab;
  EXPECT_THROW(merge_tokens(outside, f.table, f.x), Error);
  TokenMerge short_mask = f.merge();
  short_mask.mask = f.mask.view().slice(0, 2);
  EXPECT_THROW(merge_tokens(short_mask, f.table, f.x), Error);
  TokenMerge wrong = f.merge();
  wrong.probs = f.mask;
  EXPECT_THROW(merge_tokens(wrong, f.table, f.x), Error);
}

// The fixture's rows as a batch on `runtime`.
class Uploaded {
 public:
  Uploaded(const TokenMerge& merge, DeviceRuntime& runtime)
      : batch_({.max_requests = 1, .max_tokens = kTokens, .table_rows = 1, .table_pages = 1}, runtime) {
    ForwardBatch host{.mode = ForwardMode::kExtend};
    host.attn.spans = {{.q_len = kTokens}};
    host.soft.token_merge = merge;
    placed_ = &batch_.upload(host);
  }
  const SoftInputs& soft() const { return placed_->soft; }

 private:
  DeviceBatch batch_;
  const ForwardBatch* placed_ = nullptr;
};

TEST(TokenMerge, ADeviceBatchBringsItsArraysAlong) {
  const Fixture f;
  const Uploaded batch(f.merge(), cpu_runtime());
  const TokenMerge& there = *batch.soft().on_device->token_merge;
  EXPECT_NE(there.ids.data(), f.ids.data());
  EXPECT_TRUE(testing_support::bit_equal(there.mask, f.mask));
  EXPECT_TRUE(testing_support::bit_equal(there.ids, f.ids));
  EXPECT_TRUE(testing_support::bit_equal(there.probs, f.probs));
  EXPECT_TRUE(testing_support::bit_equal(there.residual, f.residual));
  EXPECT_EQ(there.mask_token_id, 1);
}

TEST(TokenMerge, OnADeviceGivesTheSameRows) {
  if (testing_support::mirrored_cuda_ops() == nullptr) GTEST_SKIP() << "no CUDA device";
  DeviceRuntime& device = testing_support::gpu();
  const LayerContext context{.ops = &cuda_module().ops("cuda"), .op = {.stream = device.stream()}, .runtime = &device};
  for (const auto length : {TokenMerge::Length::kAsSummed, TokenMerge::Length::kOfParts}) {
    const Fixture f;
    Fixture moved;
    TokenMerge merge = f.merge();
    merge.length = length;
    const Uploaded batch(merge, device);
    const Tensor table = copied_to(device, std::move(moved.table)), x = copied_to(device, std::move(moved.x));
    merge_tokens(context, batch.soft(), table, x);
    const Tensor got(DType::kF32, x.shape());
    device.copy_to_host(got.data(), x.data(), static_cast<size_t>(x.bytes()));
    merge_tokens(merge, f.table, f.x);
    EXPECT_TRUE(testing_support::all_close(got, f.x, {.abs = 1e-6}));
  }
}

}  // namespace
}  // namespace headrace
