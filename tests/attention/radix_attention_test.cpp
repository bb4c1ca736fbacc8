#include "headrace/attention/radix_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "conformance/attention_problem.h"
#include "headrace/attention/op_set_backend.h"
#include "headrace/ops/cpu/dispatch.h"
#include "headrace/ops/reference/reference_ops.h"
#include "support/device_mirror.h"
#include "support/random.h"
#include "support/refusal.h"
#include "support/tolerances.h"

namespace headrace {
namespace {

using namespace testing_support;

// Spec 24: one head, scale 2^-1/2, query (1, 0.5) at position 3, four keys and values.
class Spec24 {
 public:
  Spec24() : pool_({.groups = {{{1, 2, 2}, {0}}}, .num_pages = 4, .page_size = 1, .dtype = DType::kF32}) {
    const double keys[4][2] = {{0.2, 0.1}, {1, -1}, {0.3, 0.9}, {2, 0}},
                 values[4][2] = {{1, 0}, {0, 1}, {2, 2}, {-1, 0.5}};
    for (int32_t p = 0; p < 4; ++p) {
      for (int64_t d = 0; d < 2; ++d) {
        set_element(pool_.layer(0).k.select(p + 1).select(0).select(0), d, keys[p][d]);
        set_element(pool_.layer(0).v.select(p + 1).select(0).select(0), d, values[p][d]);
      }
      table_.data_as<int32_t>()[p] = p + 1;
    }
    set_element(q_, 0, 1);
    set_element(q_, 1, 0.5);
  }

  struct Result {
    double o0, o1, lse;
  };
  Result run(std::string_view backend, RadixAttentionConfig config, const KeySpan& span) {
    config.num_heads = config.num_kv_heads = 1;
    config.head_dim = 2;
    config.scaling = std::sqrt(0.5f);
    const auto attention = make_backend(backend, {}, {.kv_pool = &pool_});
    ForwardBatch batch{.mode = ForwardMode::kDecode, .attn_backend = attention.get()};
    batch.attn = {.spans = {span}, .page_table = table_};
    attention->init_forward_metadata(batch);
    const Tensor out = Tensor::zeros(DType::kF32, {1, 2}), got_lse = Tensor::zeros(DType::kF32, {1, 1});
    RadixAttention(config).forward(q_, {}, {}, batch, out, {.lse = got_lse});
    return {element_as_double(out, 0), element_as_double(out, 1), element_as_double(got_lse, 0)};
  }

  void expect(std::string_view backend, const RadixAttentionConfig& config, double o0, double o1,
              std::optional<double> lse, const KeySpan& span = {.ctx_len = 3, .phys0 = 3}) {
    const Result got = run(backend, config, span);
    EXPECT_NEAR(got.o0, o0, 2e-6) << backend;
    EXPECT_NEAR(got.o1, o1, 2e-6) << backend;
    if (lse) {
      EXPECT_NEAR(got.lse, *lse, 2e-6) << backend;
    }
  }

 private:
  KVPool pool_;
  Tensor table_ = Tensor::zeros(DType::kI32, {1, 4}), q_ = Tensor::zeros(DType::kF32, {1, 2});
};

TEST(RadixAttention, ReproducesTheVectorsOfTheSpecification) {
  for (const std::string_view backend : backend_names(Device())) {
    Spec24 spec;
    spec.expect(backend, {}, 0.056831, 0.816079, 2.131824);
    spec.expect(backend, {.sliding_window_size = 2}, -0.122879, 0.938561, 1.760053);
    spec.expect(backend, {.logit_cap = 2}, 0.152730, 0.843099, std::nullopt);
    spec.expect(backend, {}, 0.455921, 0.544079, 0.962213, {.ctx_len = 2, .phys0 = 3, .kind = KeySpan::Kind::kNone});
  }
}

TEST(RadixAttention, SaysWhatDoesNotFitTheBatch) {
  const KVPool pool({.groups = {{{1, 4, 4}, {0}}}, .num_pages = 3, .page_size = 16, .dtype = DType::kF32});
  for (const std::string_view name : backend_names(Device())) {
    const auto backend = make_backend(name, {}, {.kv_pool = &pool});
    const RadixAttention layer({.num_heads = 1, .head_dim = 4, .scaling = 1, .num_kv_heads = 1}, *backend);
    const Tensor table = Tensor::zeros(DType::kI32, {1, 1}), slots = Tensor::zeros(DType::kI64, {2}),
                 rows = Tensor::zeros(DType::kF32, {2, 4}), one = Tensor::zeros(DType::kF32, {1, 4}),
                 out(DType::kF32, {2, 4});
    table.data_as<int32_t>()[0] = 3, slots.data_as<int64_t>()[0] = 52, slots.data_as<int64_t>()[1] = 53;
    ForwardBatch batch{.attn_backend = backend.get()};
    batch.attn = {.spans = {{.q_len = 2, .ctx_len = 4, .phys0 = 4}}, .page_table = table, .write_slots = slots};
    backend->init_forward_metadata(batch);
    EXPECT_NO_THROW(layer.forward(rows, rows, rows, batch, out)) << name;
    EXPECT_EQ(refusal_of([&] { layer.forward(rows, one, rows, batch, out); }).sentence,
              "attention layer 0: k has 1 rows and v 2, the batch has 2 tokens");
    EXPECT_EQ(refusal_of([&] { layer.forward(rows, one, one, batch, out); }).sentence,
              "attention layer 0: k has 1 rows and v 1, the batch has 2 tokens");
    table.data_as<int32_t>()[0] = 4;
    EXPECT_EQ(refusal_of([&] { backend->init_forward_metadata(batch); }).sentence,
              "request 0: page 0 of its cache is page 4 of the pool, expected 0 to 3");
  }
}

TEST(RadixAttention, PartialResultsMergeByTheirLogSumExp) {
  for (const std::string_view backend : backend_names(Device())) {
    Spec24 spec;
    const auto first = spec.run(backend, {}, {.ctx_len = 2, .phys0 = 3, .kind = KeySpan::Kind::kNone});
    const auto rest = spec.run(backend, {}, {.ctx_len = 4, .phys0 = 3, .hole_end = 2, .kind = KeySpan::Kind::kNone});
    const double w1 = std::exp(first.lse), w2 = std::exp(rest.lse);
    EXPECT_NEAR((w1 * first.o0 + w2 * rest.o0) / (w1 + w2), 0.056831, 2e-6) << backend;
    EXPECT_NEAR((w1 * first.o1 + w2 * rest.o1) / (w1 + w2), 0.816079, 2e-6) << backend;
    EXPECT_NEAR(std::log(w1 + w2), 2.131824, 2e-6) << backend;
  }
}

// Encoder K and V given with the call are stored at the encoder's slots and attended to; the decoder's own are
// untouched.
TEST(RadixAttention, CrossAttentionStoresAndReadsTheEncodersKeys) {
  constexpr int32_t kEncoder = 21;
  for (const std::string_view name : backend_names(Device())) {
    AttentionProblem problem({.name = "cross",
                              .requests = {{.prefix = 5, .new_tokens = 3, .encoder_len = kEncoder}},
                              .source = RadixAttentionConfig::KeySource::kCrossAttention},
                             3);
    const Tensor want = std::move(problem.run(name).out), before = problem.pool_copy();
    const KVLayerView kv = problem.pool().layer(3);
    const AttnMetadata& attn = problem.batch().attn;
    const auto pages = attn.page_table.as<const int32_t, 2>("page table");
    const Tensor k(DType::kF32, {kEncoder, 2, 64}), v(DType::kF32, {kEncoder, 2, 64}), slots(DType::kI64, {kEncoder});
    for (int32_t t = 0; t < kEncoder; ++t) {
      const int64_t page = pages(attn.spans[0].encoder_page_row, t / kv.page_size()), offset = t % kv.page_size();
      slots.data_as<int64_t>()[t] = page * kv.page_size() + offset;
      for (const auto& [from, to] : {std::pair(kv.k, k.view()), std::pair(kv.v, v.view())}) {
        for (int64_t h = 0; h < 2; ++h) {
          const TensorView row = from.select(page).select(h).select(offset);
          for (int64_t d = 0; d < 64; ++d) set_element(to.select(t).select(h), d, element_as_double(row, d));
          poison(row);
        }
      }
    }
    const auto backend = make_backend(name, {}, {.kv_pool = &problem.pool()});
    problem.batch().attn_backend = backend.get();
    problem.batch().attn.encoder_write_slots = slots;
    backend->init_forward_metadata(problem.batch());
    const Tensor out(DType::kF32, want.shape());
    problem.layer().forward(problem.inputs().q, k, v, problem.batch(), out);
    EXPECT_TRUE(bit_equal(out, want)) << name;
    EXPECT_TRUE(bit_equal(problem.pool_copy(), before))
        << name << ": what was poisoned is back, and nothing else changed";
  }
}

TEST(RadixAttention, RefusesBadFieldsByName) {
  const auto refusal = [](const RadixAttentionConfig& c) {
    return testing_support::refusal_of([&c] { RadixAttention{c}; }).sentence;
  };
  const RadixAttentionConfig good{.num_heads = 4, .head_dim = 8, .num_kv_heads = 2, .layer_id = 1};
  RadixAttentionConfig c = good;
  c.sliding_window_size = 0;
  EXPECT_EQ(
      refusal(c),
      "attention layer 1: sliding_window_size is 0, expected 1 or more (it counts the query's own key), or absent");
  c = good;
  c.num_kv_heads = 3;
  EXPECT_EQ(refusal(c), "attention layer 1: num_kv_heads is 3, expected a divisor of num_heads");
  c = good;
  c.logit_cap = -1;
  EXPECT_EQ(refusal(c), "attention layer 1: logit_cap is -1, expected 0 (none) or more");
}

// What is known of a backend is said when a layer is made for it, and not in the first batch.
TEST(RadixAttention, HeadsThatItsBackendLacksAreRefusedWhenTheLayerIsMade) {
  OpSet small = cpu::select_kernel_set();
  small.name = "small", small.most_head_dim = 64;
  AttentionProblem problem({.name = "small"}, 3);
  const OpSetBackend backend("test", small, problem.pool(), {});
  const auto refused = [&backend](std::optional<int32_t> v_head_dim, int32_t head_dim) {
    const RadixAttentionConfig config{
        .num_heads = 1, .head_dim = head_dim, .num_kv_heads = 1, .layer_id = 3, .v_head_dim = v_head_dim};
    return refusal_of([&] { const RadixAttention layer(config, backend); });
  };
  EXPECT_FALSE(refused({}, 64).code);
  EXPECT_EQ(refused({}, 72).code, ErrorCode::kUnsupported);
  EXPECT_EQ(refused({}, 72).sentence,
            "layer 3: attention heads of 72 elements; the kernel set 'small' has sizes up to 64");
  EXPECT_EQ(refused(72, 64).code, ErrorCode::kUnsupported) << "values";
  EXPECT_EQ(refused({}, 0).code, ErrorCode::kInvalidArgument);
}

TEST(RadixAttention, DescribesItselfInOneLine) {
  const RadixAttention layer({.num_heads = 8,
                              .head_dim = 64,
                              .scaling = 0.125f,
                              .num_kv_heads = 2,
                              .layer_id = 3,
                              .logit_cap = 30,
                              .v_head_dim = 48,
                              .sliding_window_size = 512});
  EXPECT_EQ(layer.extra_repr(), "layer 3: 8/2 heads of 64 (v 48), scaling 0.125, cap 30, window 512");
  EXPECT_EQ(layer.tp_q_head_num(), 8);
  EXPECT_EQ(layer.tp_k_head_num(), 2);
  EXPECT_EQ(layer.tp_v_head_num(), 2);
  EXPECT_EQ(layer.qk_head_dim(), 64);
}

TEST(RadixAttention, FlatAndThreeDimensionalInputsAreTheSame) {
  AttentionProblem problem({.name = "flat", .requests = {{.prefix = 4, .new_tokens = 3}}}, 3);
  const Tensor want = std::move(problem.run("reference").out);
  const auto backend = make_backend("reference", {}, {.kv_pool = &problem.pool()});
  problem.batch().attn_backend = backend.get();
  backend->init_forward_metadata(problem.batch());
  const AttnInputs in = problem.inputs();
  const Tensor out(DType::kF32, {3, 4 * 64});
  const auto flat = [](const TensorView& x) { return x.reshape({x.dim(0), x.dim(1) * x.dim(2)}); };
  problem.layer().forward(flat(in.q), flat(in.k), flat(in.v), problem.batch(), out);
  EXPECT_TRUE(bit_equal(out.view().reshape({3, 4, 64}), want));
}

// The last 16 elements of q and k given apart, on every backend.
void expect_rope_part_adds_to_the_score(const AttentionCase& c) {
  AttentionProblem problem(c, 3);
  const Tensor want = std::move(problem.run("reference").out);
  for (const std::string_view name : all_backends()) {
    if (!is_here(name)) continue;
    SCOPED_TRACE(name);
    problem.restore_pool();
    const auto backend = backend_called(name, {}, {.kv_pool = &problem.pool()});
    problem.batch().attn_backend = backend.get();
    backend->init_forward_metadata(problem.batch());
    const AttnInputs in = problem.inputs();
    const Tensor out(DType::kF32, {3, 4, 64});
    problem.layer().forward(in.q.narrow(2, 0, 48), in.k.narrow(2, 0, 48), in.v, problem.batch(), out,
                            {.q_rope = in.q.narrow(2, 48, 64), .k_rope = in.k.narrow(2, 48, 64)});
    EXPECT_TRUE(all_close(out, want, attention_tolerance(DType::kF32)));
  }
}

TEST(RadixAttention, ARopePartIsAnAddedScoreTerm) {
  expect_rope_part_adds_to_the_score({.name = "rope", .requests = {{.prefix = 4, .new_tokens = 3}}});
}

TEST(RadixAttention, ARopePartOfFusedRowsIsFoundBetweenTheOtherHeads) {
  expect_rope_part_adds_to_the_score(
      {.name = "fused_rope", .requests = {{.prefix = 4, .new_tokens = 3}}, .rows = AttentionCase::Rows::kFused});
}

// Backends of an op set run the norms, the rotation and the gate that a layer hands them: with the results of the ops
// one by one.
TEST(RadixAttention, ARotationAndAGateAreOpsAroundIt) {
  const AttentionCase c{.name = "step", .requests = {{.prefix = 4, .new_tokens = 3}}};
  AttentionProblem problem(c, 3);
  Random random(4);
  const Tensor gate = random_tensor(random, DType::kF32, {3, 4, 64}), weight = random_tensor(random, DType::kF32, {64});
  Tensor positions(DType::kI32, {3}), inv_freq(DType::kF32, {16});
  for (int64_t i = 0; i < 3; ++i) set_element(positions, i, static_cast<double>(4 + i));
  for (int64_t i = 0; i < 16; ++i) set_element(inv_freq, i, 1.0 / static_cast<double>(1 + i));
  const NormRotaryArgs turn{.q_weight = weight, .k_weight = weight, .positions = positions, .inv_freq = inv_freq};
  const AttnInputs in = problem.inputs();
  const Tensor q = copy_of(in.q), k = copy_of(in.k), want(DType::kF32, {3, 4, 64}), got(DType::kF32, {3, 4, 64});
  const auto backend = make_backend("reference", {}, {.kv_pool = &problem.pool()});
  problem.batch().attn_backend = backend.get();
  backend->init_forward_metadata(problem.batch());
  problem.layer().forward(in.q, in.k, in.v, problem.batch(), got, {.norm_rotary = turn, .gate = gate});
  const Tensor got_pool = problem.pool_copy();
  problem.restore_pool();
  NormRotaryArgs apart = turn;
  apart.q = q, apart.k = k;
  norm_rotary_apart(reference::ops(), apart, OpContext{});
  problem.layer().forward(q, k, in.v, problem.batch(), want);
  const auto rows = [](const TensorView& x) { return x.reshape({12, 64}); };
  reference::ops().pointwise({.kind = PointwiseKind::kSigmoidMul, .x = rows(gate), .y = rows(want), .out = rows(want)},
                             {});
  EXPECT_TRUE(bit_equal(got, want));
  EXPECT_TRUE(bit_equal(got_pool, problem.pool_copy()));
}

// Rows whose results nobody reads leave the same keys and values, with and without norms and a rotation, on every
// backend of this machine; an idle batch leaves nothing.
TEST(RadixAttention, WithoutQueriesKeysAndValuesAreStoredAlone) {
  const AttentionCase c{.name = "store", .requests = {{.prefix = 4, .new_tokens = 3}, {.prefix = 0, .new_tokens = 6}}};
  AttentionProblem problem(c, 3);
  Random random(4);
  const Tensor weight = random_tensor(random, DType::kF32, {64});
  Tensor positions(DType::kI32, {9}), inv_freq(DType::kF32, {16});
  for (int64_t i = 0; i < 9; ++i) set_element(positions, i, static_cast<double>(i < 3 ? 4 + i : i - 3));
  for (int64_t i = 0; i < 16; ++i) set_element(inv_freq, i, 1.0 / static_cast<double>(1 + i));
  const NormRotaryArgs norm{.q_weight = weight, .k_weight = weight, .positions = positions, .inv_freq = inv_freq};
  const NormRotaryArgs rotation{.positions = positions, .inv_freq = inv_freq};
  for (const std::string_view name : {"reference", "cpu"}) {
    const auto backend = make_backend(name, {}, {.kv_pool = &problem.pool()});
    ForwardBatch& batch = problem.batch();
    batch.attn_backend = backend.get();
    backend->init_forward_metadata(batch);
    for (const std::optional<NormRotaryArgs>& turn : {std::optional(norm), std::optional(rotation), {}}) {
      const AttnInputs in = problem.inputs();
      const Tensor q = copy_of(in.q), k = copy_of(in.k), alone = copy_of(in.k), out(DType::kF32, {9, 4, 64});
      problem.restore_pool();
      const Tensor before = problem.pool_copy();
      problem.layer().forward(q, k, in.v, batch, out, {.norm_rotary = turn});
      const Tensor want = problem.pool_copy();
      problem.restore_pool();
      problem.layer().forward({}, alone, in.v, batch, {}, {.norm_rotary = turn});
      EXPECT_TRUE(bit_equal(problem.pool_copy(), want)) << name;
      EXPECT_FALSE(bit_equal(want, before)) << name;
      problem.restore_pool();
      problem.layer().forward({}, alone, in.v, batch, {}, {.save_kv_cache = SaveKV::kNo});
      EXPECT_TRUE(bit_equal(problem.pool_copy(), before)) << name;
      EXPECT_THROW(problem.layer().forward({}, alone, in.v, batch, out), Error);
      EXPECT_THROW(problem.layer().forward({}, {}, {}, batch, {}), Error);
    }
  }
}

TEST(RadixAttention, ARotationOfHeadsInPartsIsRefused) {
  AttentionProblem problem({.name = "parts"}, 3);
  const auto backend = make_backend("cpu", {}, {.kv_pool = &problem.pool()});
  problem.batch().attn_backend = backend.get();
  backend->init_forward_metadata(problem.batch());
  const AttnInputs in = problem.inputs();
  const Tensor out(DType::kF32, {1, 4, 64});
  RadixAttentionOptions options{.norm_rotary = NormRotaryArgs{}};
  EXPECT_THROW(problem.layer().forward(in.q, {}, {}, problem.batch(), out, options), Error);
  options.q_rope = in.q.narrow(2, 48, 64), options.k_rope = in.k.narrow(2, 48, 64);
  EXPECT_THROW(
      problem.layer().forward(in.q.narrow(2, 0, 48), in.k.narrow(2, 0, 48), in.v, problem.batch(), out, options),
      Error);
}

TEST(RadixAttention, ABatchThatWasNotPlannedIsRefused) {
  AttentionProblem problem({.name = "unplanned"}, 3);
  const auto backend = make_backend("cpu", {}, {.kv_pool = &problem.pool()});
  problem.batch().attn_backend = backend.get();
  const AttnInputs in = problem.inputs();
  const Tensor out(DType::kF32, {1, 4, 64});
  EXPECT_THROW(problem.layer().forward(in.q, in.k, in.v, problem.batch(), out), Error);
}

}  // namespace
}  // namespace headrace
