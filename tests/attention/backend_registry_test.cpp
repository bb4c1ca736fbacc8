#include "headrace/attention/backend_registry.h"

#include <gtest/gtest.h>

#include "headrace/ops/cpu/dispatch.h"
#include "support/refusal.h"

namespace headrace {
namespace {

const KVPoolConfig kPool{.groups = {{{1, 4, 4}, {0}}}, .num_pages = 1, .page_size = 1, .dtype = DType::kF32};

TEST(BackendRegistry, AutoPicksTheBestAndSaysWhich) {
  const KVPool pool(kPool);
  const auto backend = make_backend("auto", {}, {.kv_pool = &pool});
  EXPECT_EQ(backend->name(), "cpu");
  EXPECT_NE(backend->describe().find(cpu::select_kernel_set().name), std::string::npos);
  EXPECT_EQ(backend->cuda_graph_support(), nullptr);
}

TEST(BackendRegistry, ABackendThatIsNotBuiltIsAnErrorThatNamesThoseThatAre) {
  const KVPool pool(kPool);
  try {
    make_backend("flashinfer", {}, {.kv_pool = &pool});
    FAIL() << "a backend that is not built was made";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUnsupported);
    EXPECT_STREQ(e.what(), "attention backend 'flashinfer' is not built for device cpu; built are: cpu, reference");
  }
}

TEST(BackendRegistry, ADeviceHasItsOwnBackends) {
  const KVPool pool(kPool);
  try {
    make_backend("cpu", {DeviceType::kCUDA, 0}, {.kv_pool = &pool});
    FAIL() << "the cpu backend was made for a CUDA device";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "attention backend 'cpu' is not built for device cuda:0; built are: cuda, cuda_baseline");
  }
}

TEST(BackendRegistry, AKernelSetCanBeForcedByName) {
  const KVPool pool(kPool);
  const auto backend = make_backend("cpu", {}, {.kv_pool = &pool, .kernel_set = "portable"});
  EXPECT_EQ(backend->describe(), "cpu: paged_attention portable (grouped)");
  EXPECT_THROW(make_backend("cpu", {}, {.kv_pool = &pool, .kernel_set = "sse"}), Error);
  EXPECT_THROW(make_backend("reference", {}, {.kv_pool = &pool, .kernel_set = "portable"}), Error);
  EXPECT_THROW(make_backend("cpu", {}, {}), Error);
}

TEST(BackendRegistry, GatedDeltaNetAloneNeedsNoCache) {
  const GDNPool states({.num_layers = 1,
                        .num_slots = 1,
                        .num_k_heads = 1,
                        .num_v_heads = 1,
                        .head_k_dim = 16,
                        .head_v_dim = 16,
                        .conv_dtype = DType::kF32});
  const auto backend = make_backend("cpu", {}, {.gdn_pool = &states});
  ForwardBatch batch{.attn_backend = backend.get()};
  batch.attn = {.spans = {{.ctx_len = 70, .phys0 = 70}}, .state_slots = {{1, 1}}};  // of tokens that no layer cached
  EXPECT_NO_THROW(backend->init_forward_metadata(batch));
  EXPECT_THROW(make_backend("cpu", {}, {.gdn_pool = &states, .full_attn_layer_ids = {3}}), Error);
}

TEST(BackendRegistry, ThereIsAThread) {
  const KVPool pool(kPool);
  const auto refused =
      testing_support::refusal_of([&] { make_backend("cpu", {}, {.kv_pool = &pool, .context = {.threads = 0}}); });
  EXPECT_EQ(refused.code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused.sentence, "attention backend 'cpu': threads is 0, expected 1 or more");
}

// The sampler on the host took the same name, which no set of a CPU has: what was chosen for a device failed behind the
// weights.
TEST(BackendRegistry, ADeviceHasNoKernelSetsAndSaysWhatChoosesItsKernels) {
  for (const char* backend : {"cuda", "cuda_baseline"}) {
    for (const char* set : {"avx2", "cuda_baseline"}) {
      const auto refused = testing_support::refusal_of([&] {
        backend_ops(backend, {DeviceType::kCUDA, 0}, {.kernel_set = set});
      });
      EXPECT_EQ(refused.code, ErrorCode::kUnsupported);
      EXPECT_EQ(refused.sentence, str("attention backend '", backend, "' has no kernel sets; '", set,
                                      "' was asked for: they are a CPU's (--device cpu), and --backend cuda or "
                                      "cuda_baseline chooses a device's "
                                      "kernels"));
    }
  }
}

TEST(BackendRegistry, AnImplementationCanBeForcedAndIsNamed) {
  const KVPool pool(kPool);
  const auto described = [&pool](std::string_view backend, AttnImpl impl) {
    return make_backend(backend, {}, {.kv_pool = &pool, .attn_impl = impl})->describe();
  };
  EXPECT_EQ(described("cpu", AttnImpl::kReference), "cpu: paged_attention reference (reference)");
  EXPECT_NE(described("cpu", AttnImpl::kOptimized).find("(optimized)"), std::string::npos);
  EXPECT_EQ(described("reference", AttnImpl::kReference), "reference: paged_attention reference (reference)");
  EXPECT_THROW(described("reference", AttnImpl::kGrouped), Error);
}

TEST(BackendRegistry, W35_GDNOnAPlainBackendNamesTheHybrid) {
  const KVPool pool(kPool);
  const auto backend = make_backend("cpu", {}, {.kv_pool = &pool});
  const Tensor vector = Tensor::zeros(DType::kF32, {1}), conv = Tensor::zeros(DType::kF32, {6, 4});
  const RadixLinearAttention layer({.layer_id = 2,
                                    .num_k_heads = 1,
                                    .num_v_heads = 1,
                                    .head_k_dim = 2,
                                    .head_v_dim = 2,
                                    .conv_weight = conv,
                                    .a_log = vector,
                                    .dt_bias = vector});
  ForwardBatch batch{.mode = ForwardMode::kDecode, .attn_backend = backend.get()};
  batch.attn.spans = {{}};
  backend->init_forward_metadata(batch);
  try {
    const Tensor qkv = Tensor::zeros(DType::kF32, {1, 6}), gates = Tensor::zeros(DType::kF32, {1, 1});
    layer.forward(batch, {.mixed_qkv = qkv, .a = gates, .b = gates}, Tensor::zeros(DType::kF32, {1, 2}));
    FAIL() << "a plain backend ran a GDN layer";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUnsupported);
    EXPECT_NE(std::string(e.what()).find("HybridAttnBackend"), std::string::npos);
  }
}

}  // namespace
}  // namespace headrace
