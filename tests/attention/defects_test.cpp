// One test for each defect of the origins that attention could repeat; docs/defects.md lists them.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "conformance/attention_problem.h"
#include "support/random.h"
#include "support/tolerances.h"

namespace headrace::testing_support {
namespace {

class Defects : public testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override {
    if (!is_here(GetParam())) GTEST_SKIP() << "no CUDA device";
  }
};

TEST_P(Defects, W02_PaddingRowsTouchNothing) {
  AttentionProblem problem({.name = "padding", .requests = {{.prefix = 3}, {}}}, 1);
  auto* slots = static_cast<int64_t*>(problem.batch().attn.write_slots.data());
  slots[1] = kDoNotStore;
  const auto backend = backend_called(GetParam(), {}, {.kv_pool = &problem.pool()});
  problem.restore_pool();
  problem.batch().attn_backend = backend.get();
  backend->init_forward_metadata(problem.batch());
  const Tensor out(DType::kF32, {2, 4, 64});
  const AttnInputs in = problem.inputs();
  backend->forward(problem.layer(), in, problem.batch(), out);
  const KVLayerView kv = problem.pool().layer(3);
  for (int64_t i = 0; i < kv.k.select(0).numel(); ++i) {
    ASSERT_TRUE(std::isnan(element_as_double(kv.k.select(0), i))) << "slot 0 was written";
  }
}

TEST_P(Defects, W12_AnIdleBatchYieldsZerosAndStoresNothing) {
  AttentionProblem problem({.name = "idle", .requests = {{.prefix = 3, .new_tokens = 2}}}, 1);
  const Tensor before = problem.pool_copy();
  problem.batch().mode = ForwardMode::kIdle;
  EXPECT_TRUE(all_close(problem.run(GetParam()).out, Tensor::zeros(DType::kF32, {2, 4, 64}), {}));
  EXPECT_TRUE(bit_equal(problem.pool_copy(), before));
}

TEST_P(Defects, W14_WindowIsPerLayer) {
  // Two layers of one batch, the second with a window: each obeys its own, in extend and in decode.
  for (const int32_t new_tokens : {1, 9}) {
    const std::vector<RequestCase> requests = {{.prefix = 30, .new_tokens = new_tokens}};
    AttentionProblem full({.name = "full", .requests = requests}, 1);
    AttentionProblem windowed({.name = "windowed", .requests = requests, .window = 5}, 1);
    const Tensor all = std::move(full.run(GetParam()).out), few = std::move(windowed.run(GetParam()).out);
    EXPECT_FALSE(all_close(few, all, {.abs = 1e-3}));
    EXPECT_TRUE(all_close(few, windowed.run("reference").out, attention_tolerance(DType::kF32)));
  }
}

TEST_P(Defects, W15_AttentionTypesAreHonoured) {
  const std::vector<RequestCase> requests = {{.prefix = 5, .new_tokens = 6}};
  AttentionProblem causal({.name = "decoder", .requests = requests}, 1);
  AttentionProblem both({.name = "bidirectional", .requests = requests, .type = AttentionType::kDecoderBidirectional},
                        1);
  AttentionProblem encoder({.name = "encoder", .requests = requests, .type = AttentionType::kEncoderOnly}, 1);
  const Tensor a = std::move(causal.run(GetParam()).out), b = std::move(both.run(GetParam()).out);
  const Tensor before = encoder.pool_copy();
  const Tensor c = std::move(encoder.run(GetParam()).out);
  EXPECT_TRUE(bit_equal(encoder.pool_copy(), before)) << "an encoder-only layer stored something";
  EXPECT_FALSE(all_close(b, a, {.abs = 1e-3}));
  EXPECT_FALSE(all_close(c, b, {.abs = 1e-3}));
  // The last row sees the same keys either way.
  EXPECT_TRUE(all_close(b.view().slice(5, 6), a.view().slice(5, 6), attention_tolerance(DType::kF32)));
}

TEST_P(Defects, W16_UnsavedKeysAreSeenAndThePoolStaysAsItIs) {
  for (const int32_t new_tokens : {1, 4}) {
    const std::vector<RequestCase> requests = {{.prefix = 7, .new_tokens = new_tokens}, {.new_tokens = new_tokens}};
    AttentionProblem saved({.name = "saved", .requests = requests}, 1);
    AttentionProblem unsaved({.name = "unsaved", .requests = requests, .save = SaveKV::kNo}, 1);
    const Tensor before = unsaved.pool_copy();
    const Tensor got = std::move(unsaved.run(GetParam()).out);
    EXPECT_TRUE(bit_equal(unsaved.pool_copy(), before));
    EXPECT_TRUE(bit_equal(got, saved.run(GetParam()).out));
  }
}

TEST_P(Defects, W17_KeysOfAnotherLayerAreReadFromThePool) {
  // Running with k and v given fills the pool; then k = v = null reads the same keys back, bit for bit.
  AttentionProblem problem({.name = "shared", .requests = {{.prefix = 7, .new_tokens = 5}, {.new_tokens = 3}}}, 1);
  const Tensor want = std::move(problem.run(GetParam()).out);
  const auto backend = backend_called(GetParam(), {}, {.kv_pool = &problem.pool()});
  problem.batch().attn_backend = backend.get();
  backend->init_forward_metadata(problem.batch());
  const Tensor got(DType::kF32, want.shape());
  backend->forward(problem.layer(), {.q = problem.inputs().q}, problem.batch(), got);
  EXPECT_TRUE(bit_equal(got, want));
  EXPECT_THROW(
      backend->forward(problem.layer(), {.q = problem.inputs().q, .v = problem.inputs().v}, problem.batch(), got),
      Error);
}

TEST_P(Defects, W28_ATailPageIsReadUpToItsLastTokenOnly) {
  // Poisoned slots behind the last token of a half-filled page must not be read, for any page size.
  for (const int32_t page_size : {16, 32, 64, 128, 256}) {
    AttentionProblem problem({.name = "tail", .requests = {{.prefix = 17, .new_tokens = 2}}, .page_size = page_size},
                             1);
    const Tensor got = std::move(problem.run(GetParam()).out);
    EXPECT_TRUE(all_close(got, problem.run("reference").out, attention_tolerance(DType::kF32)));
  }
}

TEST_P(Defects, B09_GroupsThatAreNoPowerOfTwoMatch) {
  for (const int32_t group : {3, 5, 6, 7, 12}) {
    for (const int32_t new_tokens : {1, 9}) {
      AttentionProblem problem({.name = "group",
                                .requests = {{.prefix = 70, .new_tokens = new_tokens}, {.prefix = 3}},
                                .num_heads = 2 * group},
                               1);
      const Tensor got = std::move(problem.run(GetParam()).out);
      EXPECT_TRUE(all_close(got, problem.run("reference").out, attention_tolerance(DType::kF32))) << group;
    }
  }
}

TEST_P(Defects, B10_ARowThatSeesNoKeyYieldsZeros) {
  AttentionProblem problem(
      {.name = "nothing", .requests = {{.prefix = 4, .new_tokens = 2, .kind = KeySpan::Kind::kNone, .hole_end = 4}}},
      1);
  const auto result = problem.run(GetParam());
  EXPECT_TRUE(all_close(result.out, Tensor::zeros(DType::kF32, {2, 4, 64}), {}));
  EXPECT_EQ(element_as_double(result.lse, 0), -std::numeric_limits<double>::infinity());
}

INSTANTIATE_TEST_SUITE_P(Backends, Defects, testing::ValuesIn(all_backends()),
                         [](const auto& backend) { return std::string(backend.param); });

}  // namespace
}  // namespace headrace::testing_support
