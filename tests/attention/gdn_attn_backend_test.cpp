// Which ops GDNAttnBackend runs, and the norm behind them.
#include "headrace/attention/gdn_attn_backend.h"

#include <gtest/gtest.h>

#include "headrace/attention/hybrid_attn_backend.h"
#include "headrace/attention/op_set_backend.h"
#include "headrace/ops/reference/reference_ops.h"
#include "support/all_close.h"
#include "support/random.h"
#include "support/refusal.h"

namespace headrace {
namespace {

using namespace testing_support;

constexpr int32_t kKHeads = 1, kVHeads = 2, kDim = 8, kConvDim = 2 * kKHeads * kDim + kVHeads * kDim, kStepTokens = 3;
constexpr float kMark = 7;

// Stands for a fused step: marks its outputs.
bool mark(const GDNStepArgs& a, const OpContext&) {
  for (int64_t i = 0; i < a.out.numel(); ++i) set_element(a.out, i, kMark);
  return true;
}
bool refuse(const GDNStepArgs&, const OpContext&) { return false; }

struct Problem {
  // `lens`: tokens of each request, three in all.
  Tensor run(const OpSet& ops, const std::vector<int32_t>& lens, const std::vector<StateSnapshot>& snapshots = {},
             const GatedNorm& norm = {}) const {
    const GDNPool pool({.num_layers = 1,
                        .num_slots = 5,
                        .num_k_heads = kKHeads,
                        .num_v_heads = kVHeads,
                        .head_k_dim = kDim,
                        .head_v_dim = kDim,
                        .conv_dtype = DType::kF32});
    GDNAttnBackend backend(pool, ops, {}, kStepTokens);
    ForwardBatch batch{.mode = ForwardMode::kMixed};
    batch.attn.snapshots = snapshots;
    for (int32_t r = 0, row = 0; r < static_cast<int32_t>(lens.size()); row += lens[static_cast<size_t>(r++)]) {
      batch.attn.spans.push_back({.q_off = row, .q_len = lens[static_cast<size_t>(r)]});
      batch.attn.state_slots.push_back({.read = kNoState, .write = 1 + r});
    }
    Tensor out(DType::kF32, {kStepTokens, kVHeads, kDim});
    poison(out);
    backend.init_forward_metadata(batch);
    backend.forward(layer, {.mixed_qkv = qkv, .a = a, .b = b, .norm = norm}, batch, out);
    return out;
  }

  Random random{5};
  Tensor conv_weight = random_tensor(random, DType::kF32, {kConvDim, 4}, 0.5);
  Tensor vector = random_tensor(random, DType::kF32, {kVHeads}, 0.5);
  Tensor qkv = random_tensor(random, DType::kF32, {kStepTokens, kConvDim});
  Tensor a = random_tensor(random, DType::kF32, {kStepTokens, kVHeads});
  Tensor b = random_tensor(random, DType::kF32, {kStepTokens, kVHeads});
  Tensor gate = random_tensor(random, DType::kF32, {kStepTokens, kVHeads, kDim});
  Tensor weight = random_tensor(random, DType::kF32, {kDim});
  RadixLinearAttention layer{{.num_k_heads = kKHeads,
                              .num_v_heads = kVHeads,
                              .head_k_dim = kDim,
                              .head_v_dim = kDim,
                              .conv_weight = conv_weight,
                              .a_log = vector,
                              .dt_bias = vector}};
};

OpSet with_step(bool (*step)(const GDNStepArgs&, const OpContext&)) {
  OpSet ops = reference::ops();
  ops.gdn_step = step;
  return ops;
}

bool marked(const Tensor& out) { return element_as_double(out, 0) == kMark; }

TEST(GDNAttnBackend, TakesTheFusedStepForOneTokenEach) {
  const OpSet ops = with_step(mark);
  EXPECT_TRUE(marked(Problem().run(ops, {1, 1, 1})));
  EXPECT_FALSE(marked(Problem().run(ops, {1, 2})));
  EXPECT_FALSE(marked(Problem().run(ops, {1, 1, 1}, {{.request = 1, .num_tokens = 1, .slot = 4}})));
}

TEST(GDNAttnBackend, RunsTheOpsWhereTheFusedStepRefuses) {
  const OpSet ops = with_step(refuse);
  EXPECT_TRUE(bit_equal(Problem().run(ops, {1, 1, 1}), Problem().run(reference::ops(), {1, 1, 1})));
}

// Through the hybrid, which has both kinds.
TEST(GDNAttnBackend, KeyHeadsThatItLacksAreRefusedWhenTheLayerIsMade) {
  OpSet small = reference::ops();
  small.most_gdn_key_dim = kDim - 1;
  const KVPool keys({.groups = {{{1, 8, 8}, {1}}}, .num_pages = 1, .page_size = 16, .dtype = DType::kF32});
  const GDNPool states({.num_layers = 1,
                        .num_slots = 1,
                        .num_k_heads = kKHeads,
                        .num_v_heads = kVHeads,
                        .head_k_dim = kDim,
                        .head_v_dim = kDim,
                        .conv_dtype = DType::kF32});
  const auto code_with = [&](const OpSet& ops) {
    const HybridAttnBackend hybrid(std::make_unique<OpSetBackend>("test", ops, keys, OpContext{}),
                                   std::make_unique<GDNAttnBackend>(states, ops, OpContext{}, kStepTokens), {1});
    return refusal_of([&] { const RadixLinearAttention layer(Problem().layer.config(), hybrid); }).code;
  };
  EXPECT_EQ(code_with(small), ErrorCode::kUnsupported);
  EXPECT_EQ(code_with(reference::ops()), std::nullopt);
}

TEST(GDNAttnBackend, DTypesThatItLacksAreRefusedWhenTheLayerIsMade) {
  const Problem p;
  const KVPool keys({.groups = {{{1, 8, 8}, {1}}}, .num_pages = 1, .page_size = 16, .dtype = DType::kF32});
  const auto refused_with = [&](DType weight, DType conv_dtype) {
    const GDNPool states({.num_layers = 1,
                          .num_slots = 1,
                          .num_k_heads = kKHeads,
                          .num_v_heads = kVHeads,
                          .head_k_dim = kDim,
                          .head_v_dim = kDim,
                          .conv_dtype = conv_dtype});
    const HybridAttnBackend hybrid(std::make_unique<OpSetBackend>("test", reference::ops(), keys, OpContext{}),
                                   std::make_unique<GDNAttnBackend>(states, reference::ops(), OpContext{}, kStepTokens),
                                   {1});
    RadixLinearAttentionConfig config = p.layer.config();
    const Tensor conv_weight(weight, config.conv_weight.shape());
    config.conv_weight = conv_weight;
    return refusal_of([&] { const RadixLinearAttention layer(config, hybrid); });
  };
  EXPECT_EQ(refused_with(DType::kBF16, DType::kF16).code, std::nullopt);
  EXPECT_EQ(refused_with(DType::kF64, DType::kF32).code, ErrorCode::kUnsupported);
  EXPECT_EQ(refused_with(DType::kF32, DType::kI32).code, ErrorCode::kUnsupported);
  EXPECT_EQ(
      refused_with(DType::kF32, DType::kI32).sentence,
      "layer 0: states of a Gated DeltaNet convolution of int32; the kernel set 'reference' has float32, bfloat16 "
      "and float16");
}

// States count as much as keys: a warm-up leaves them alone.
TEST(GDNAttnBackend, AStepThatKeepsStatesIsRefusedWhileWarmingUp) {
  const KVPool keys({.groups = {{{1, 8, 8}, {1}}}, .num_pages = 1, .page_size = 16, .dtype = DType::kF32});
  const GDNPool states({.num_layers = 1,
                        .num_slots = 1,
                        .num_k_heads = kKHeads,
                        .num_v_heads = kVHeads,
                        .head_k_dim = kDim,
                        .head_v_dim = kDim,
                        .conv_dtype = DType::kF32});
  const Problem p;
  HybridAttnBackend hybrid(std::make_unique<OpSetBackend>("test", reference::ops(), keys, OpContext{}),
                           std::make_unique<GDNAttnBackend>(states, reference::ops(), OpContext{}, kStepTokens), {1});
  const auto code_with = [&](int32_t slot) {
    ForwardBatch batch{.mode = ForwardMode::kMixed, .attn_backend = &hybrid};
    batch.attn.spans = {{.q_len = kStepTokens}};
    batch.attn.state_slots = {{.read = kNoState, .write = slot}};
    const Tensor out(DType::kF32, {kStepTokens, kVHeads, kDim});
    hybrid.init_forward_metadata(batch);  // before the warm-up begins
    const WarmupScope warming_up(hybrid.metadata_source());
    const auto forward = [&] { p.layer.forward(batch, {.mixed_qkv = p.qkv, .a = p.a, .b = p.b}, out); };
    const auto ran = refusal_of(forward).code;
    const auto planned = refusal_of([&] { hybrid.init_forward_metadata(batch); }).code;
    EXPECT_EQ(planned.has_value(), slot != kNoState);
    return ran;
  };
  EXPECT_EQ(code_with(1), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_with(kNoState), std::nullopt);
}

TEST(GDNAttnBackend, AppliesTheGatedNorm) {
  const Problem p;
  const GatedNorm norm{.gate = p.gate, .weight = p.weight, .eps = 1e-5f};
  const Tensor plain = p.run(reference::ops(), {3}), got = p.run(reference::ops(), {3}, {}, norm);
  const Tensor want(DType::kF32, plain.shape());
  reference::ops().rms_norm({.x = plain, .weight = p.weight, .gate = p.gate, .eps = 1e-5f, .out = want}, {});
  EXPECT_TRUE(bit_equal(got, want));
}

}  // namespace
}  // namespace headrace
