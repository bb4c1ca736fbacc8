#include "headrace/attention/attention.h"

#include <gtest/gtest.h>

#include <utility>

#include "conformance/attention_problem.h"
#include "headrace/ops/cpu/dispatch.h"
#include "support/all_close.h"
#include "support/random.h"
#include "support/refusal.h"

namespace headrace {
namespace {

using namespace testing_support;

TEST(AttnMetadataSource, TwoSourcesDoNotSeeEachOther) {
  AttnMetadataSource a, b;
  AttnMetadata step;
  a.set_fetch_fn_for_attn_metadata([&]() -> const AttnMetadata& { return step; });
  EXPECT_EQ(&a.fetch_attn_metadata(), &step);
  EXPECT_THROW(static_cast<void>(b.fetch_attn_metadata()), Error);
  const WarmupScope warm_up(a);
  EXPECT_TRUE(a.is_warming_up());
  EXPECT_FALSE(b.is_warming_up());
}

TEST(AttnMetadataSource, AScopeEndsTheWarmUp) {
  AttnMetadataSource source;
  { const WarmupScope warm_up(source); }
  EXPECT_FALSE(source.is_warming_up());
}

enum class Slots : uint8_t { kOfThePool, kNone };  // of a step's rows

// Runs one step of a problem through Attention and says whether the pool changed.
bool stores(AttnImpl impl, bool warming_up, Slots slots) {
  AttentionProblem problem({.name = "warm", .requests = {{.prefix = 2, .new_tokens = 3}}}, 1);
  std::vector<int64_t> no_slots(3, kDoNotStore);
  AttnMetadata step = problem.batch().attn;
  if (slots == Slots::kNone) step.write_slots = TensorView(no_slots.data(), DType::kI64, {3});
  AttnMetadataSource source;
  source.set_fetch_fn_for_attn_metadata([&]() -> const AttnMetadata& { return step; });
  if (warming_up) source.set_warming_up();
  Attention attention({.num_heads = 4, .head_dim = 64, .scale = 0.1f, .num_kv_heads = 2, .attn_impl = impl}, source);
  attention.bind_kv_cache(problem.pool().layer(3));
  const AttnInputs in = problem.inputs();
  const Tensor out(DType::kF32, in.q.shape()), before = problem.pool_copy();
  const auto refused = refusal_of([&] { attention.forward(in.q, in.k, in.v, out); });
  EXPECT_EQ(refused.code.has_value(), warming_up && slots == Slots::kOfThePool) << refused.sentence;
  return !static_cast<bool>(bit_equal(problem.pool_copy(), before));
}

TEST(Attention, StoresNothingWhileWarmingUp) {
  for (const AttnImpl impl : {AttnImpl::kReference, AttnImpl::kOptimized, AttnImpl::kGrouped}) {
    EXPECT_TRUE(stores(impl, false, Slots::kOfThePool)) << name_of(impl);
    EXPECT_FALSE(stores(impl, true, Slots::kOfThePool)) << name_of(impl);
    EXPECT_FALSE(stores(impl, true, Slots::kNone)) << name_of(impl);
  }
}

// What a warm-up is for: were new keys not stored, or read from elsewhere, other kernels would start.
TEST(Attention, RunsTheVeryOpsWhileWarmingUpThatItRunsLater) {
  static std::vector<std::string> ran;
  OpSet ops = cpu::select_kernel_set();
  ops.store_kv = [](const StoreKVArgs& a, const OpContext&) { ran.push_back(str("store ", a.slots.numel())); };
  ops.paged_attention = [](const PagedAttentionArgs& a, const OpContext&) {
    ran.push_back(a.k_new ? "attend to new keys apart" : "attend to the pool");
  };
  AttentionProblem problem({.name = "warm", .requests = {{.prefix = 2, .new_tokens = 3}}}, 1);
  for (const auto new_keys : {DeviceMetadata::NewKeys::kAllStored, DeviceMetadata::NewKeys::kSomeNotStored}) {
    const DeviceMetadata on_device{.new_keys = new_keys, .keeps = DeviceMetadata::Keeps::kNothing};
    AttnMetadata step = problem.batch().attn;
    step.on_device = &on_device;
    AttnMetadataSource source;
    source.set_fetch_fn_for_attn_metadata([&]() -> const AttnMetadata& { return step; });
    Attention attention({.num_heads = 4, .head_dim = 64, .num_kv_heads = 2, .ops = &ops}, source);
    attention.bind_kv_cache(problem.pool().layer(3));
    const AttnInputs in = problem.inputs();
    const Tensor out(DType::kF32, in.q.shape());
    ran.clear();
    attention.forward(in.q, in.k, in.v, out);
    const auto later = std::exchange(ran, {});
    ASSERT_EQ(later.size(), 2u);
    const WarmupScope warm_up(source);
    attention.forward(in.q, in.k, in.v, out);
    EXPECT_EQ(ran, later);
  }
}

TEST(Attention, NamesTheKernelThatRuns) {
  const AttnMetadataSource source;
  const Attention attention({.num_heads = 1, .head_dim = 8, .num_kv_heads = 1}, source);
  EXPECT_EQ(attention.kernel_name().find("grouped "), 0u);
  EXPECT_EQ(attn_impl_from("triton"), AttnImpl::kOptimized);
  EXPECT_EQ(attn_impl_from("naive"), AttnImpl::kReference);
  EXPECT_THROW(attn_impl_from("cudnn"), Error);
}

TEST(Attention, TheFreeFunctionsHaveTheBitsOfTheirImplementations) {
  AttentionProblem problem({.name = "free", .requests = {{.prefix = 70, .new_tokens = 3}}}, 1);
  const AttnInputs in = problem.inputs();
  const struct {
    AttnImpl impl;
    void (*attend)(const PagedAttentionArgs&, const OpContext&);
  } kAll[] = {{AttnImpl::kReference, reference_attention},
              {AttnImpl::kOptimized, optimized_attention},
              {AttnImpl::kGrouped, grouped_attention}};
  for (const auto& [impl, attend] : kAll) {
    SCOPED_TRACE(name_of(impl));
    AttnMetadataSource source;
    source.set_fetch_fn_for_attn_metadata([&]() -> const AttnMetadata& { return problem.batch().attn; });
    Attention layer({.num_heads = 4, .head_dim = 64, .scale = 0.1f, .num_kv_heads = 2, .attn_impl = impl}, source);
    layer.bind_kv_cache(problem.pool().layer(3));
    const Tensor want(DType::kF32, in.q.shape()), got(DType::kF32, in.q.shape());
    layer.forward(in.q, in.k, in.v, want, {.save_kv_cache = SaveKV::kNo});
    attend({.q = in.q,
            .k_new = in.k,
            .v_new = in.v,
            .kv = problem.pool().layer(3),
            .spans = problem.batch().attn.spans,
            .page_table = problem.batch().attn.page_table,
            .scale = 0.1f,
            .out = got},
           {});
    EXPECT_TRUE(bit_equal(got, want));
  }
}

TEST(Attention, ABatchWithoutSlotsForNewKeysIsRefused) {
  AttentionProblem problem({.name = "slots", .requests = {{.prefix = 2, .new_tokens = 3}}}, 1);
  AttnMetadata step = problem.batch().attn;
  step.write_slots = {};
  AttnMetadataSource source;
  source.set_fetch_fn_for_attn_metadata([&]() -> const AttnMetadata& { return step; });
  Attention attention({.num_heads = 4, .head_dim = 64, .num_kv_heads = 2}, source);
  attention.bind_kv_cache(problem.pool().layer(3));
  const AttnInputs in = problem.inputs();
  const Tensor out(DType::kF32, in.q.shape());
  EXPECT_THROW(attention.forward(in.q, in.k, in.v, out), Error);
  EXPECT_NO_THROW(attention.forward(in.q, in.k, in.v, out, {.save_kv_cache = SaveKV::kNo}));
}

TEST(Attention, B12_RefusesTheDistinctLayoutByName) {
  const AttnMetadataSource source;
  try {
    const Attention attention({.num_heads = 1, .head_dim = 8, .num_kv_heads = 1, .kv_cache_layout = "distinct"},
                              source);
    FAIL() << "the distinct layout was accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUnsupported);
    EXPECT_STREQ(e.what(), "attention: kv cache layout 'distinct' is not built; built is: unified");
  }
}

}  // namespace
}  // namespace headrace
