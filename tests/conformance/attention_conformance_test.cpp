// Every registered backend, kernel set and Attention implementation against the double-precision oracle.
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <utility>

#include "conformance/attention_cases.h"
#include "headrace/ops/cpu/dispatch.h"
#include "support/device_mirror.h"
#include "support/random.h"
#include "support/tolerances.h"

namespace headrace::testing_support {

void PrintTo(const AttentionCase& c, std::ostream* out) { *out << c.name; }  // found by name lookup

namespace {

std::string case_name(const testing::TestParamInfo<AttentionCase>& info) { return info.param.name; }

// --exhaustive gives a seed here; CI runs the pairs alone.
std::vector<AttentionCase> sampled_cases() {
  const char* seed = std::getenv("HEADRACE_EXHAUSTIVE");
  return seed == nullptr ? std::vector<AttentionCase>{}
                         : sampled_attention_cases(std::strtoull(seed, nullptr, 10), 3000);
}

// Null where the case runs on a device.
const char* why_no_cuda(const AttentionCase& c) {
  if (c.pool_dtype == DType::kI8) return "keys and values in int8 run on a CPU alone";
  return mirrored_cuda_ops() == nullptr ? "no CUDA device" : nullptr;
}

class AttentionConformance : public testing::TestWithParam<AttentionCase> {};

TEST_P(AttentionConformance, EveryKernelSetMatchesTheOracle) {
  AttentionProblem problem(GetParam(), 1);
  const auto want = problem.run("reference");
  const Tensor want_pool = problem.pool_copy();
  for (const cpu::KernelSet& set : cpu::kernel_sets()) {
    if (!set.runs_here()) continue;
    SCOPED_TRACE(set.ops->name);
    const auto got = problem.run("cpu", std::string(set.ops->name), {.threads = 2});
    EXPECT_TRUE(all_close(got.out, want.out, attention_tolerance(want.out.dtype())));
    EXPECT_TRUE(all_close(got.lse, want.lse, lse_tolerance(want.out.dtype())));
    EXPECT_TRUE(bit_equal(problem.pool_copy(), want_pool));
  }
}

// A request's rows under strictness: the same bits in a batch of its own, on every kernel set.
TEST_P(AttentionConformance, StrictRowsDoNotDependOnTheBatch) {
  AttentionProblem problem(GetParam(), 3);
  const std::vector<KeySpan> spans = problem.batch().attn.spans;
  const OpContext strict = {.threads = 2, .determinism = Determinism::kStrict};
  for (const cpu::KernelSet& set : cpu::kernel_sets()) {
    if (!set.runs_here()) continue;
    SCOPED_TRACE(set.ops->name);
    const std::string name(set.ops->name);
    const Tensor together = std::move(problem.run("cpu", name, strict).out);
    for (size_t r = 0; r < spans.size(); ++r) {
      const TensorView rows = together.view().slice(spans[r].q_off, spans[r].q_off + spans[r].q_len);
      EXPECT_TRUE(bit_equal(problem.run_part({r, r + 1}, "cpu", name, strict).out, rows)) << "request " << r;
    }
  }
}

// Each mode is a test of its own, so that tools which slow a device down can look at one.
void expect_cuda_to_match_the_oracle(const AttentionCase& test, Determinism determinism) {
  AttentionProblem problem(test, 1);
  const auto want = problem.run("reference");
  const Tensor want_pool = problem.pool_copy();
  for (const std::string_view set : kCudaSets) {
    SCOPED_TRACE(set);
    const auto got = problem.run(set, std::nullopt, {.determinism = determinism});
    EXPECT_TRUE(all_close(got.out, want.out, attention_tolerance(want.out.dtype())));
    EXPECT_TRUE(all_close(got.lse, want.lse, lse_tolerance(want.out.dtype())));
    EXPECT_TRUE(bit_equal(problem.pool_copy(), want_pool));
  }
}

TEST_P(AttentionConformance, CudaMatchesTheOracle) {
  if (const char* reason = why_no_cuda(GetParam())) GTEST_SKIP() << reason;
  expect_cuda_to_match_the_oracle(GetParam(), Determinism::kFast);
}

TEST_P(AttentionConformance, StrictCudaMatchesTheOracle) {
  if (const char* reason = why_no_cuda(GetParam())) GTEST_SKIP() << reason;
  expect_cuda_to_match_the_oracle(GetParam(), Determinism::kStrict);
}

TEST_P(AttentionConformance, CudaStrictRowsDoNotDependOnTheBatch) {
  if (const char* reason = why_no_cuda(GetParam())) GTEST_SKIP() << reason;
  AttentionProblem problem(GetParam(), 3);
  const std::vector<KeySpan> spans = problem.batch().attn.spans;
  const OpContext strict = {.determinism = Determinism::kStrict};
  for (const std::string_view set : kCudaSets) {
    SCOPED_TRACE(set);
    const Tensor together = std::move(problem.run(set, std::nullopt, strict).out);
    for (size_t r = 0; r < spans.size(); ++r) {
      const TensorView rows = together.view().slice(spans[r].q_off, spans[r].q_off + spans[r].q_len);
      EXPECT_TRUE(bit_equal(problem.run_part({r, r + 1}, set, std::nullopt, strict).out, rows)) << "request " << r;
    }
  }
}

TEST_P(AttentionConformance, TheThreeImplementationsMatch) {
  AttentionProblem problem(GetParam(), 2);
  const auto want = problem.run("cpu", AttnImpl::kReference);
  for (const AttnImpl impl : {AttnImpl::kOptimized, AttnImpl::kGrouped}) {
    SCOPED_TRACE(name_of(impl));
    const auto got = problem.run("cpu", impl);
    EXPECT_TRUE(all_close(got.out, want.out, attention_tolerance(want.out.dtype())));
    EXPECT_TRUE(all_close(got.lse, want.lse, attention_tolerance(DType::kF32)));
  }
}

TEST_P(AttentionConformance, CudaImplementationsMatchTheOracle) {
  if (const char* reason = why_no_cuda(GetParam())) GTEST_SKIP() << reason;
  AttentionProblem problem(GetParam(), 2);
  const auto want = problem.run("reference");
  for (const std::string_view set : kCudaSets) {
    for (const AttnImpl impl : {AttnImpl::kReference, AttnImpl::kOptimized}) {
      SCOPED_TRACE(testing::Message() << set << " " << name_of(impl));
      const auto got = problem.run(set, impl);
      EXPECT_TRUE(all_close(got.out, want.out, attention_tolerance(want.out.dtype())));
      EXPECT_TRUE(all_close(got.lse, want.lse, lse_tolerance(want.out.dtype())));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Named, AttentionConformance, testing::ValuesIn(named_attention_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(Int8, AttentionConformance, testing::ValuesIn(int8_attention_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(Pairs, AttentionConformance, testing::ValuesIn(pairwise_attention_cases()), case_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(AttentionConformance);
INSTANTIATE_TEST_SUITE_P(Sampled, AttentionConformance, testing::ValuesIn(sampled_cases()), case_name);

// The pairs are real: a hole lies in somebody's context under every kind, window, head and page.
TEST(AttentionCases, EveryValueOfEveryAxisMeetsAHole) {
  std::set<KeySpan::Kind> kinds;
  std::set<int32_t> windows, groups, dims, pages, rows;
  std::set<int32_t> narrower_than_values;
  std::set<std::pair<DType, DType>> types;
  for (const AttentionCase& c : pairwise_attention_cases()) {
    for (const RequestCase& r : c.requests) {
      if (r.hole_end == 0) continue;
      EXPECT_LT(r.hole_end, r.prefix);
      kinds.insert(r.kind), rows.insert(r.new_tokens), windows.insert(c.window.value_or(0));
      groups.insert(c.num_heads / c.num_kv_heads), dims.insert(c.head_dim), pages.insert(c.page_size);
      if (c.v_head_dim.value_or(0) > c.head_dim) narrower_than_values.insert(c.head_dim);
      types.emplace(c.dtype, c.pool_dtype);
    }
  }
  EXPECT_EQ(kinds.size(), 4) << "all but kPrefixFull, which has no context";
  EXPECT_EQ(windows.size(), 4);
  EXPECT_EQ(groups.size(), 6);
  EXPECT_EQ(dims, (std::set{64, 80, 96, 128, 192, 256, 512}));
  EXPECT_GE(narrower_than_values.size(), 3);
  EXPECT_EQ(pages.size(), 6);
  EXPECT_EQ(rows, (std::set{1, 2, 11}));
  EXPECT_GE(types.size(), 6);
}

class KernelSet : public testing::TestWithParam<std::string_view> {};

// A set that this machine lacks is skipped by its name, never passed.
TEST_P(KernelSet, RunsHere) {
  for (const cpu::KernelSet& set : cpu::kernel_sets()) {
    if (set.ops->name != GetParam()) continue;
    if (!set.runs_here()) GTEST_SKIP() << "this machine cannot run the kernel set " << GetParam();
    EXPECT_EQ(cpu::select_kernel_set(GetParam()).name, GetParam());
    return;
  }
  FAIL() << "no kernel set is called " << GetParam();
}

std::vector<std::string_view> set_names() {
  std::vector<std::string_view> names;
  for (const cpu::KernelSet& set : cpu::kernel_sets()) names.push_back(set.ops->name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, KernelSet, testing::ValuesIn(set_names()),
                         [](const auto& set) { return std::string(set.param); });

}  // namespace
}  // namespace headrace::testing_support
