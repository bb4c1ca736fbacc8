// A hybrid backend over both pools: routing, modes, padding, splits.
#include <gtest/gtest.h>

#include <cmath>

#include "conformance/attention_problem.h"
#include "headrace/attention/backend_registry.h"
#include "headrace/attention/hybrid_attn_backend.h"
#include "headrace/core/device_runtime.h"
#include "headrace/ops/cuda_module.h"
#include "support/all_close.h"
#include "support/device_mirror.h"
#include "support/gpu.h"
#include "support/random.h"

namespace headrace {
namespace {

using namespace testing_support;

constexpr int32_t kKeyHeads = 2, kValueHeads = 4, kKDim = 16, kVDim = 8,
                  kConvChannels = 2 * kKeyHeads * kKDim + kValueHeads * kVDim;
constexpr int32_t kMaxTokens = 200;
constexpr GDNPoolConfig kGDNPool{.num_layers = 1,
                                 .num_slots = 6,
                                 .num_k_heads = kKeyHeads,
                                 .num_v_heads = kValueHeads,
                                 .head_k_dim = kKDim,
                                 .head_v_dim = kVDim,
                                 .conv_dtype = DType::kF32};

// One GDN layer (id 0) beside one full-attention layer (id 1), and inputs for `kMaxTokens` tokens.
class Hybrid {
 public:
  explicit Hybrid(std::string_view backend, Determinism determinism = Determinism::kFast)
      : kv_({.groups = {{{1, 8, 8}, {1}}}, .num_pages = 2, .page_size = 16, .dtype = DType::kF32}),
        gdn_(kGDNPool),
        layer_({.layer_id = 0,
                .num_k_heads = kKeyHeads,
                .num_v_heads = kValueHeads,
                .head_k_dim = kKDim,
                .head_v_dim = kVDim,
                .conv_weight = conv_weight_,
                .a_log = a_log_,
                .dt_bias = dt_bias_}),
        backend_(backend_called(backend, {},
                                {.kv_pool = &kv_,
                                 .gdn_pool = &gdn_,
                                 .full_attn_layer_ids = {1},
                                 .max_tokens = kMaxTokens,
                                 .context = {.threads = 2, .determinism = determinism}})) {}

  struct Part {
    int32_t tokens, from;  // rows [from, from + tokens) of the inputs
    StateSlots slots;
  };
  // Runs the parts as one batch; the result has their rows one after the other.
  Tensor run(const std::vector<Part>& parts, ForwardMode mode) {
    ForwardBatch batch{.mode = mode, .attn_backend = backend_.get()};
    int32_t rows = 0;
    for (const Part& part : parts) {
      batch.attn.spans.push_back({.q_off = rows, .q_len = part.tokens});
      batch.attn.state_slots.push_back(part.slots);
      rows += part.tokens;
    }
    Tensor qkv(DType::kF32, {rows, kConvChannels}), a(DType::kF32, {rows, kValueHeads}),
        b(DType::kF32, {rows, kValueHeads});
    Tensor out(DType::kF32, {rows, kValueHeads, kVDim});
    poison(out);
    for (size_t i = 0; i < parts.size(); ++i) {
      copy_rows(qkv_, qkv, parts[i], batch.attn.spans[i].q_off);
      copy_rows(a_, a, parts[i], batch.attn.spans[i].q_off);
      copy_rows(b_, b, parts[i], batch.attn.spans[i].q_off);
    }
    backend_->init_forward_metadata(batch);
    layer_.forward(batch, {.mixed_qkv = qkv, .a = a, .b = b}, out);
    return out;
  }
  TensorView state(int32_t slot) const { return gdn_.layer(0).recurrent.select(slot); }
  TensorView conv_state(int32_t slot) const { return gdn_.layer(0).conv.select(slot); }
  AttentionBackend& backend() { return *backend_; }
  const RadixLinearAttention& layer() const { return layer_; }

 private:
  static void copy_rows(const TensorView& from, const TensorView& to, const Part& part, int32_t at) {
    const int64_t width = from.dim(1);
    for (int64_t i = 0; i < part.tokens * width; ++i) {
      set_element(to, at * width + i, element_as_double(from, part.from * width + i));
    }
  }

  Random random_{11};
  Tensor conv_weight_ = random_tensor(random_, DType::kF32, {kConvChannels, 4}, 0.5);
  Tensor a_log_ = random_tensor(random_, DType::kF32, {kValueHeads}, 0.5);
  Tensor dt_bias_ = random_tensor(random_, DType::kF32, {kValueHeads}, 0.5);
  Tensor qkv_ = random_tensor(random_, DType::kF32, {kMaxTokens, kConvChannels});
  Tensor a_ = random_tensor(random_, DType::kF32, {kMaxTokens, kValueHeads});
  Tensor b_ = random_tensor(random_, DType::kF32, {kMaxTokens, kValueHeads});
  KVPool kv_;
  GDNPool gdn_;
  RadixLinearAttention layer_;
  std::unique_ptr<AttentionBackend> backend_;
};

constexpr Tolerance kGDN{.abs = 3e-5, .rel = 3e-5};  // float32 sums; the chunked form orders them otherwise

class HybridBackend : public testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override {
    if (!is_here(GetParam())) GTEST_SKIP() << "no CUDA device";
  }
};

TEST_P(HybridBackend, W13_AnIdleBatchYieldsZerosOnGDNLayersToo) {
  Hybrid hybrid(GetParam());
  const Tensor out = hybrid.run({{3, 0, {kNoState, 1}}}, ForwardMode::kIdle);
  EXPECT_TRUE(all_close(out, Tensor::zeros(DType::kF32, out.shape()), {}));
  EXPECT_TRUE(all_close(hybrid.state(1), Tensor::zeros(DType::kF32, hybrid.state(1).shape()), {}));
}

TEST_P(HybridBackend, MixedEqualsItsPartsRunApart) {
  Hybrid together(GetParam()), apart(GetParam());
  for (Hybrid* h : {&together, &apart}) h->run({{20, 0, {kNoState, 1}}}, ForwardMode::kExtend);
  const Tensor mixed = together.run({{1, 20, {1, 1}}, {90, 40, {kNoState, 2}}}, ForwardMode::kMixed);
  const Tensor decode = apart.run({{1, 20, {1, 1}}}, ForwardMode::kDecode);
  const Tensor extend = apart.run({{90, 40, {kNoState, 2}}}, ForwardMode::kExtend);
  EXPECT_TRUE(bit_equal(mixed.view().slice(0, 1), decode));
  EXPECT_TRUE(bit_equal(mixed.view().slice(1, 91), extend));
  EXPECT_TRUE(bit_equal(together.state(1), apart.state(1)));
  EXPECT_TRUE(bit_equal(together.state(2), apart.state(2)));
}

void expect_splits_agree(std::string_view backend, Determinism determinism) {
  constexpr int32_t kTokens = 140;
  Hybrid whole(backend, determinism);
  const Tensor want = whole.run({{kTokens, 0, {kNoState, 1}}}, ForwardMode::kExtend);
  for (const int32_t cut : {1, 2, 63, 64, 65, 100, 139}) {
    SCOPED_TRACE(cut);
    Hybrid split(backend, determinism);
    const Tensor head = split.run({{cut, 0, {kNoState, 1}}}, ForwardMode::kExtend);
    const Tensor tail = split.run({{kTokens - cut, cut, {1, 1}}}, ForwardMode::kExtend);
    const auto same = [&](const TensorView& got, const TensorView& expected) {
      return determinism == Determinism::kStrict ? bit_equal(got, expected) : all_close(got, expected, kGDN);
    };
    EXPECT_TRUE(same(head, want.view().slice(0, cut)));
    EXPECT_TRUE(same(tail, want.view().slice(cut, kTokens)));
    EXPECT_TRUE(same(split.state(1), whole.state(1)));
    EXPECT_TRUE(bit_equal(split.conv_state(1), whole.conv_state(1)));
  }
}

TEST_P(HybridBackend, AnExtendSplitAnywhereEqualsOneRun) { expect_splits_agree(GetParam(), Determinism::kFast); }

TEST_P(HybridBackend, AnExtendSplitAnywhereIsBitEqualWhenStrict) {
  if (GetParam() == "reference") GTEST_SKIP() << "the oracle keeps doubles inside one call";
  expect_splits_agree(GetParam(), Determinism::kStrict);
}

TEST_P(HybridBackend, TokenByTokenDecodeEqualsOneExtend) {
  Hybrid extend(GetParam()), decode(GetParam());
  const Tensor want = extend.run({{70, 0, {kNoState, 1}}}, ForwardMode::kExtend);
  for (int32_t t = 0; t < 70; ++t) {
    const Tensor got = decode.run({{1, t, {t == 0 ? kNoState : 1, 1}}}, ForwardMode::kDecode);
    ASSERT_TRUE(all_close(got, want.view().slice(t, t + 1), kGDN)) << "token " << t;
  }
}

TEST_P(HybridBackend, TokenByTokenDecodeIsBitEqualWhenStrict) {
  if (GetParam() == "reference") GTEST_SKIP() << "the oracle keeps doubles inside one call";
  Hybrid extend(GetParam(), Determinism::kStrict), decode(GetParam(), Determinism::kStrict);
  const Tensor want = extend.run({{70, 0, {kNoState, 1}}}, ForwardMode::kExtend);
  for (int32_t t = 0; t < 70; ++t) {
    const Tensor got = decode.run({{1, t, {t == 0 ? kNoState : 1, 1}}}, ForwardMode::kDecode);
    ASSERT_TRUE(bit_equal(got, copy_of(want.view().slice(t, t + 1)))) << "token " << t;
  }
  EXPECT_TRUE(bit_equal(decode.state(1), extend.state(1)));
  EXPECT_TRUE(bit_equal(decode.conv_state(1), extend.conv_state(1)));
}

TEST_P(HybridBackend, W02_PaddingWritesNoState) {
  Hybrid hybrid(GetParam());
  poison(hybrid.state(0));
  hybrid.run({{1, 0, {kNoState, 1}}, {1, 1, {kNoState, kNoState}}}, ForwardMode::kDecode);
  EXPECT_TRUE(std::isnan(element_as_double(hybrid.state(0), 0)));
  EXPECT_TRUE(all_close(hybrid.state(2), Tensor::zeros(DType::kF32, hybrid.state(2).shape()), {}));
}

TEST_P(HybridBackend, AReadSlotStaysAsItIsWhenAnotherIsWritten) {
  Hybrid hybrid(GetParam());
  hybrid.run({{30, 0, {kNoState, 1}}}, ForwardMode::kExtend);
  const Tensor before = copy_of(hybrid.state(1));
  const Tensor forked = hybrid.run({{5, 30, {1, 2}}}, ForwardMode::kExtend);
  EXPECT_TRUE(bit_equal(hybrid.state(1), before));
  EXPECT_TRUE(all_close(forked, hybrid.run({{5, 30, {1, 1}}}, ForwardMode::kExtend), {}));
  EXPECT_TRUE(bit_equal(hybrid.state(1), hybrid.state(2)));
}

TEST_P(HybridBackend, RefusesALayerOfTheOtherKind) {
  Hybrid hybrid(GetParam());
  const RadixAttention wrong({.num_heads = 1, .head_dim = 8, .num_kv_heads = 1, .layer_id = 0});
  ForwardBatch batch{.mode = ForwardMode::kDecode, .attn_backend = &hybrid.backend()};
  batch.attn.spans = {{}};
  batch.attn.state_slots = {{}};
  hybrid.backend().init_forward_metadata(batch);
  const Tensor x = Tensor::zeros(DType::kF32, {1, 8});
  EXPECT_THROW(wrong.forward(x, x, x, batch, x), Error);
}

// The backend of a device itself, over pools and results of its memory alone.
TEST(HybridBackend_OnADevice, W12_AnIdleBatchYieldsZeros) {
  if (mirrored_cuda_ops() == nullptr) GTEST_SKIP() << "no CUDA device";
  DeviceRuntime& device = testing_support::gpu();
  const KVPool kv({.groups = {{{1, 8, 8}, {1}}}, .num_pages = 1, .page_size = 16, .dtype = DType::kF32}, device);
  const GDNPool gdn(kGDNPool, device);
  const auto backend = make_backend("cuda", device.device(),
                                    {.kv_pool = &kv,
                                     .gdn_pool = &gdn,
                                     .full_attn_layer_ids = {1},
                                     .max_tokens = kMaxTokens,
                                     .runtime = &device,
                                     .context = {.stream = device.stream()}});
  const auto poisoned = [&device](const Shape& shape) {
    Tensor host(DType::kF32, shape);
    poison(host);
    return copied_to(device, std::move(host));
  };
  const auto expect_zeros = [&device](const Tensor& out) {
    const Tensor host(DType::kF32, out.shape());
    device.copy_to_host(host.data(), out.data(), static_cast<size_t>(out.bytes()));
    EXPECT_TRUE(all_close(host, Tensor::zeros(DType::kF32, host.shape()), {}));
  };
  ForwardBatch batch{.mode = ForwardMode::kIdle, .attn_backend = backend.get()};
  batch.attn.spans = {{.q_len = 3}};
  backend->init_forward_metadata(batch);
  const RadixAttention full({.num_heads = 1, .head_dim = 8, .num_kv_heads = 1, .layer_id = 1});
  const Tensor x = poisoned({3, 1, 8}), attended = poisoned({3, 1, 8});
  full.forward(x, x, x, batch, attended);
  expect_zeros(attended);
  const Hybrid layers("cpu");
  const Tensor qkv = poisoned({3, kConvChannels}), a = poisoned({3, kValueHeads}),
               states = poisoned({3, kValueHeads, kVDim});
  layers.layer().forward(batch, {.mixed_qkv = qkv, .a = a, .b = a}, states);
  expect_zeros(states);
}

INSTANTIATE_TEST_SUITE_P(Backends, HybridBackend, testing::ValuesIn(all_backends()),
                         [](const auto& backend) { return std::string(backend.param); });

}  // namespace
}  // namespace headrace
