// pymllm's graph lifecycle through a hybrid backend: state, capture and replay with request rows and lengths. On the
// fake device, with reference ops, and on a GPU.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "bench/fake_device.h"
#include "headrace/attention/backend_registry.h"
#include "headrace/attention/decode_batch.h"
#include "headrace/attention/hybrid_attn_backend.h"
#include "headrace/core/device_runtime.h"
#include "headrace/ops/cuda_module.h"
#include "headrace/ops/reference/reference_ops.h"
#include "support/all_close.h"
#include "support/device_mirror.h"
#include "support/gpu.h"
#include "support/random.h"
#include "support/refusal.h"

namespace headrace::graph_lifecycle {
namespace {

using namespace testing_support;

constexpr int32_t kRequests = 4, kContext = 64, kPageSize = 16, kPages = 1 + kRequests * kContext / kPageSize;
constexpr int32_t kHeads = 2, kHeadDim = 64, kKeyHeads = 2, kValueHeads = 4, kKDim = 128, kVDim = 128,
                  kConvDim = 2 * kKeyHeads * kKDim + kValueHeads * kVDim;
const KVPoolConfig kKV{
    .groups = {{{1, kHeadDim, kHeadDim}, {1}}}, .num_pages = kPages, .page_size = kPageSize, .dtype = DType::kF32};
constexpr GDNPoolConfig kGDN{.num_layers = 1,
                             .num_slots = kRequests,
                             .num_k_heads = kKeyHeads,
                             .num_v_heads = kValueHeads,
                             .head_k_dim = kKDim,
                             .head_v_dim = kVDim,
                             .conv_dtype = DType::kF32};

// One token of each of kRequests requests: inputs and results of both layers.
struct Rows {
  explicit Rows(DeviceRuntime& runtime = cpu_runtime())
      : q(DType::kF32, {kRequests, kHeads, kHeadDim}, runtime),
        k(DType::kF32, {kRequests, 1, kHeadDim}, runtime),
        v(DType::kF32, {kRequests, 1, kHeadDim}, runtime),
        mixed(DType::kF32, {kRequests, kConvDim}, runtime),
        a(DType::kF32, {kRequests, kValueHeads}, runtime),
        b(DType::kF32, {kRequests, kValueHeads}, runtime),
        attended(DType::kF32, {kRequests, kHeads, kHeadDim}, runtime),
        recurred(DType::kF32, {kRequests, kValueHeads, kVDim}, runtime) {}
  std::array<const Tensor*, 6> inputs() const { return {&q, &k, &v, &mixed, &a, &b}; }
  Tensor q, k, v, mixed, a, b, attended, recurred;
};

void run_layers(const RadixAttention& full, const RadixLinearAttention& linear, const ForwardBatch& batch,
                const Rows& rows) {
  const int64_t n = batch.num_tokens();
  const auto first = [n](const Tensor& x) { return x.view().slice(0, n); };
  full.forward(first(rows.q), first(rows.k), first(rows.v), batch, first(rows.attended));
  linear.forward(batch, {.mixed_qkv = first(rows.mixed), .a = first(rows.a), .b = first(rows.b)}, first(rows.recurred));
}

enum class Kind : uint8_t { kFake, kGPU };

class CudaGraphLifecycle : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    if (GetParam() == Kind::kGPU && mirrored_cuda_ops() == nullptr) GTEST_SKIP() << "no CUDA device";
    runtime_ = GetParam() == Kind::kGPU ? &testing_support::gpu() : &fake_;
    kv_.emplace(kKV, *runtime_);
    gdn_.emplace(kGDN, *runtime_);
    backend_ = make();
    conv_weight_ = on_device(random_tensor(random_, DType::kF32, {kConvDim, 4}, 0.5));
    a_log_ = on_device(random_tensor(random_, DType::kF32, {kValueHeads}, 0.5));
    dt_bias_ = on_device(random_tensor(random_, DType::kF32, {kValueHeads}, 0.5));
    rows_.emplace(*runtime_);
    for (int32_t r = 0; r < kRequests; ++r) {
      const int32_t row = *requests_.alloc();
      for (int32_t p = 0; p < kContext / kPageSize; ++p) {
        requests_.write(row, p, std::array{1 + r * (kContext / kPageSize) + p});
      }
      requests_.set_state_slot(row, kRequests - r);
    }
  }

  std::unique_ptr<AttentionBackend> make() {
    return make_backend("cuda", runtime_->device(),
                        {.kv_pool = &*kv_,
                         .gdn_pool = &*gdn_,
                         .req_to_token_pool = &requests_,
                         .full_attn_layer_ids = {1},
                         .max_tokens = kRequests,
                         .runtime = runtime_,
                         .context = {.stream = runtime_->stream()},
                         .ops = GetParam() == Kind::kGPU ? nullptr : &fake_.ops()});
  }

  Tensor on_device(const Tensor& host) const {
    Tensor copy(host.dtype(), host.shape(), *runtime_);
    runtime_->copy_to_device(copy.data(), host.data(), static_cast<size_t>(host.bytes()));
    return copy;
  }
  Tensor on_host(const TensorView& device) const {
    Tensor copy(device.dtype(), device.shape());
    runtime_->copy_to_host(copy.data(), device.data(), static_cast<size_t>(device.bytes()));
    return copy;
  }
  RadixLinearAttention linear(const TensorView& conv_weight, const TensorView& a_log, const TensorView& dt_bias) const {
    return RadixLinearAttention({.layer_id = 0,
                                 .num_k_heads = kKeyHeads,
                                 .num_v_heads = kValueHeads,
                                 .head_k_dim = kKDim,
                                 .head_v_dim = kVDim,
                                 .conv_weight = conv_weight,
                                 .a_log = a_log,
                                 .dt_bias = dt_bias});
  }
  CudaGraphSupport& graphs() { return *backend_->cuda_graph_support(); }
  const GDNForwardMetadata& gdn_metadata() const {
    return dynamic_cast<const HybridAttnBackend&>(*backend_).gdn_backend().forward_metadata();
  }

  // Captures both layers over the first `bs` rows, after a warm-up.
  std::unique_ptr<DeviceGraph> capture(int32_t bs) {
    const Tensor none = Tensor::zeros(DType::kI32, {bs});
    const Tensor lens(DType::kI32, {bs});
    std::fill_n(lens.data_as<int32_t>(), bs, graphs().get_cuda_graph_seq_len_fill_value());
    const RadixLinearAttention gdn = linear(conv_weight_, a_log_, dt_bias_);
    const WarmupScope warming_up(backend_->metadata_source());
    const ForwardBatch& batch =
        graphs().init_forward_metadata_capture_cuda_graph(bs, bs, none, lens, ForwardMode::kDecode);
    run_layers(full_, gdn, batch, *rows_);
    runtime_->synchronize();
    runtime_->begin_capture();
    run_layers(full_, gdn, batch, *rows_);
    return runtime_->end_capture();
  }

  bench::FakeDevice fake_{reference::ops()};
  DeviceRuntime* runtime_ = nullptr;
  ReqToTokenPool requests_{kRequests, kContext, kPageSize};
  std::optional<KVPool> kv_;
  std::optional<GDNPool> gdn_;
  std::unique_ptr<AttentionBackend> backend_;
  Random random_{3};
  const RadixAttention full_{
      {.num_heads = kHeads, .head_dim = kHeadDim, .scaling = 0.125f, .num_kv_heads = 1, .layer_id = 1}};
  Tensor conv_weight_, a_log_, dt_bias_;
  std::optional<Rows> rows_;
};

Tensor integers(DType dtype, const std::vector<int32_t>& values) {
  Tensor all(dtype, {static_cast<int64_t>(values.size())});
  for (size_t i = 0; i < values.size(); ++i) set_element(all, static_cast<int64_t>(i), values[i]);
  return all;
}

// Runs the requests on the CPU, without graphs and padding.
struct Expected {
  KVPool kv{kKV};
  GDNPool gdn{kGDN};
  std::unique_ptr<AttentionBackend> backend =
      make_backend("reference", {}, {.kv_pool = &kv, .gdn_pool = &gdn, .full_attn_layer_ids = {1}, .max_tokens = 4});

  void run(const ReqToTokenPool& requests, const std::vector<int32_t>& table_rows, const std::vector<int32_t>& lens,
           const RadixAttention& full, const RadixLinearAttention& linear, const Rows& rows) const {
    ForwardBatch batch{.mode = ForwardMode::kDecode, .attn_backend = backend.get()};
    std::vector<int64_t> slots;
    for (size_t r = 0; r < table_rows.size(); ++r) {
      const int32_t at = lens[r] - 1, row = table_rows[r];
      const int32_t state = static_cast<int32_t>(element_as_double(requests.state_slots(), row));
      batch.attn.spans.push_back({.q_off = static_cast<int32_t>(r), .ctx_len = at, .phys0 = at, .page_row = row});
      batch.attn.state_slots.push_back({at == 0 ? kNoState : state, state});
      slots.push_back(requests.slot_of(row, at));
    }
    batch.attn.page_table = requests.page_table();
    batch.attn.write_slots = TensorView(slots.data(), DType::kI64, {static_cast<int64_t>(slots.size())});
    backend->init_forward_metadata(batch);
    run_layers(full, linear, batch, rows);
  }
};

constexpr Tolerance kClose{.abs = 3e-5, .rel = 3e-5};  // float32 sums in another order on a GPU

// Requests come, leave and change places; lengths pass pages. Rows behind the requests are padding.
TEST_P(CudaGraphLifecycle, ReplaysEqualStepsWithoutGraphs) {
  graphs().init_cuda_graph_state(kRequests, kRequests);
  const auto graph = capture(kRequests);
  const int64_t* const indices = gdn_metadata().cache_indices.data();
  const Expected expected;
  const Tensor conv_weight = on_host(conv_weight_), a_log = on_host(a_log_), dt_bias = on_host(dt_bias_);
  const RadixLinearAttention host_linear = linear(conv_weight, a_log, dt_bias);
  std::vector<int32_t> len(kRequests + 1, 0);
  const ForwardBatch* batch = nullptr;
  for (int32_t step = 0; step < 40; ++step) {
    const std::vector<int32_t> live = step < 5    ? std::vector<int32_t>{2}
                                      : step < 20 ? std::vector<int32_t>{2, 4, 1, 3}
                                                  : std::vector<int32_t>{3, 2, 1};
    const Rows host;
    for (size_t i = 0; i < host.inputs().size(); ++i) {
      const Tensor values = random_tensor(random_, DType::kF32, host.inputs()[i]->shape());
      std::memcpy(host.inputs()[i]->data(), values.data(), static_cast<size_t>(values.bytes()));
      runtime_->copy_to_device(rows_->inputs()[i]->data(), values.data(), static_cast<size_t>(values.bytes()));
    }
    std::vector<int32_t> table_rows = live, lens;
    for (const int32_t row : live) lens.push_back(++len[static_cast<size_t>(row)]);
    expected.run(requests_, table_rows, lens, full_, host_linear, host);
    table_rows.resize(kRequests, 0);
    lens.resize(kRequests, graphs().get_cuda_graph_seq_len_fill_value());
    const bool synchronises = step % 2 == 0;  // lengths on the device alone
    const Tensor on_cpu = integers(DType::kI32, lens);
    const Tensor indices_there = on_device(integers(step % 3 == 0 ? DType::kI64 : DType::kI32, table_rows));
    const Tensor lens_there = on_device(integers(DType::kI32, lens));
    const int64_t sum = std::accumulate(lens.begin(), lens.end(), int64_t{0});
    const ForwardBatch& replayed = graphs().init_forward_metadata_replay_cuda_graph(
        kRequests, indices_there, lens_there, sum, ForwardMode::kDecode, synchronises ? TensorView() : on_cpu.view());
    ASSERT_TRUE(batch == nullptr || batch == &replayed);
    batch = &replayed;
    graph->launch();
    const auto count = static_cast<int64_t>(live.size());
    ASSERT_TRUE(
        all_close(on_host(rows_->attended.view().slice(0, count)), host.attended.view().slice(0, count), kClose))
        << "step " << step;
    ASSERT_TRUE(
        all_close(on_host(rows_->recurred.view().slice(0, count)), host.recurred.view().slice(0, count), kClose))
        << "step " << step;
    ASSERT_EQ(gdn_metadata().cache_indices.data(), indices);
    for (size_t r = 0; r < kRequests; ++r) {
      EXPECT_EQ(gdn_metadata().cache_indices[r], r < live.size() ? kRequests + 1 - live[r] : kNoState);
    }
    EXPECT_TRUE(gdn_metadata().cu_seqlens.empty());
  }
  // Padding wrote nothing, and every state is the one of its request.
  EXPECT_TRUE(all_close(on_host(gdn_->layer(0).recurrent), expected.gdn.layer(0).recurrent, kClose));
  EXPECT_TRUE(all_close(on_host(gdn_->layer(0).conv), expected.gdn.layer(0).conv, kClose));
  EXPECT_TRUE(all_close(on_host(kv_->layer(1).k), expected.kv.layer(1).k, {}));
  EXPECT_TRUE(all_close(on_host(kv_->layer(1).v), expected.kv.layer(1).v, {}));
}

TEST_P(CudaGraphLifecycle, RefusesWhatAGraphDoesNotHold) {
  const Tensor rows = integers(DType::kI32, {1, 2}), lens = integers(DType::kI32, {5, 1});
  const auto captured = [&](int32_t bs, int32_t tokens, ForwardMode mode) {
    return refusal_of([&] { graphs().init_forward_metadata_capture_cuda_graph(bs, tokens, rows, lens, mode); })
        .sentence;
  };
  EXPECT_EQ(captured(1, 1, ForwardMode::kDecode),
            "cuda graph: bs is 1, expected up to 0, as init_cuda_graph_state was told");
  graphs().init_cuda_graph_state(kRequests, kRequests);
  EXPECT_EQ(captured(2, 2, ForwardMode::kExtend), "cuda graph: forward mode extend, expected decode or idle");
  EXPECT_EQ(captured(2, 2, ForwardMode::kMixed), "cuda graph: forward mode mixed, expected decode or idle");
  EXPECT_EQ(captured(2, 3, ForwardMode::kDecode), "cuda graph: 3 tokens of 2 requests, expected one of each");
  EXPECT_EQ(captured(3, 3, ForwardMode::kDecode),
            "decode batch: req_pool_indices is int32[2], expected dense int32 or int64 of 3 or more");
  EXPECT_EQ(captured(0, 0, ForwardMode::kDecode), "cuda graph: bs is 0, expected 1 or more");
  EXPECT_EQ(captured(2, 2, ForwardMode::kDecode), "");

  const auto replayed = [&](int32_t bs, const std::vector<int32_t>& indices, const std::vector<int32_t>& keys,
                            int64_t sum) {
    return refusal_of([&] {
             graphs().init_forward_metadata_replay_cuda_graph(bs, integers(DType::kI32, indices),
                                                              integers(DType::kI32, keys), sum, ForwardMode::kDecode);
           })
        .sentence;
  };
  EXPECT_EQ(replayed(1, {1}, {5}, 5), "cuda graph: no graph of 1 requests was captured");
  EXPECT_EQ(replayed(2, {1, 2}, {5, 1}, 7), "decode batch: seq_lens_sum is 7, the 2 lengths add up to 6");
  EXPECT_EQ(replayed(2, {1, 5}, {5, 1}, 6), "decode batch: request row 5, expected 0 (padding) to 4");
  EXPECT_EQ(replayed(2, {1, 2}, {5, 0}, 5), "decode batch: request row 2 has 0 keys, expected 1 to 64");
  EXPECT_EQ(replayed(2, {1, 2}, {65, 1}, 66), "decode batch: request row 1 has 65 keys, expected 1 to 64");
  requests_.set_state_slot(2, 0);
  EXPECT_EQ(replayed(2, {1, 2}, {5, 1}, 6), "decode batch: request row 2 has no state slot; call set_state_slot");
  EXPECT_EQ(replayed(2, {1, 0}, {5, 1}, 6), "");
}

// A DeviceBatch of a caller's own: the graph reads the one that it was captured with.
TEST_P(CudaGraphLifecycle, ABatchInOtherMemoryIsRefusedByBothBackends) {
  graphs().init_cuda_graph_state(kRequests, kRequests);
  const DeviceBatchConfig config{.max_requests = 2, .max_tokens = 2, .table_rows = kRequests + 1, .table_pages = 4};
  DeviceBatch first(config, *runtime_), second(config, *runtime_);
  ForwardBatch batch{.mode = ForwardMode::kDecode};
  batch.attn = {.spans = {{}}, .page_table = requests_.page_table(), .state_slots = {{}}};
  graphs().init_forward_metadata_capture_cuda_graph(first.upload(batch), 1);
  EXPECT_NO_THROW(graphs().init_forward_metadata_replay_cuda_graph(first.upload(batch), 1));
  EXPECT_EQ(refusal_of([&] { graphs().init_forward_metadata_replay_cuda_graph(second.upload(batch), 1); }).sentence,
            "cuda graph: a batch of 1 requests is not in the memory that its graph was captured with");
  EXPECT_EQ(refusal_of([&] { graphs().init_forward_metadata_capture_cuda_graph(first.upload(batch), 2); }).sentence,
            "cuda graph: the batch has 1 requests, expected 2, padding included");
}

TEST(CudaGraphSupport, RequestRowsNeedATable) {
  bench::FakeDevice device(reference::ops());
  const KVPool kv(kKV, device);
  const auto backend =
      make_backend("cuda", device.device(), {.kv_pool = &kv, .runtime = &device, .ops = &device.ops()});
  CudaGraphSupport& graphs = *backend->cuda_graph_support();
  graphs.init_cuda_graph_state(1, 1);
  const Tensor one = integers(DType::kI32, {1});
  EXPECT_EQ(refusal_of([&] {
              graphs.init_forward_metadata_capture_cuda_graph(1, 1, one, one, ForwardMode::kDecode);
            }).sentence,
            "cuda graph: request rows and lengths need a request table; expected BackendConfig::req_to_token_pool");
}

INSTANTIATE_TEST_SUITE_P(Devices, CudaGraphLifecycle, testing::Values(Kind::kFake, Kind::kGPU),
                         [](const auto& kind) { return kind.param == Kind::kGPU ? "GPU" : "Fake"; });

}  // namespace
}  // namespace headrace::graph_lifecycle
