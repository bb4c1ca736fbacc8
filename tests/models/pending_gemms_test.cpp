// Models whose ops run GEMMs of few tokens together: all that a forward pass has pending runs before its results are
// read, and the calls are those that model_gemms.h states.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "headrace/layers/linear.h"
#include "headrace/models/model_gemms.h"
#include "headrace/ops/cpu/dispatch.h"
#include "models/golden_runner.h"
#include "support/all_close.h"

namespace headrace {
namespace {

// k, n of each product, norm, SwiGLU, residual
using Call = std::tuple<int64_t, std::vector<int64_t>, bool, bool, bool>;

Call call_of(const cuda::GemmProblem& p) {
  std::vector<int64_t> widths;
  for (int i = 0; i < p.num_products; ++i) widths.push_back(p.products[static_cast<size_t>(i)].n);
  return {p.k, widths, p.norm.has_value(), p.swiglu, p.residual.has_value()};
}

std::set<Call> calls_seen;
size_t most_together = 0;

// Runs the calls by the parts of fused_linear on this machine.
void gemm_sequence(std::span<const FusedLinearArgs> calls, const OpContext& context) {
  most_together = std::max(most_together, calls.size());
  for (const FusedLinearArgs& call : calls) {
    // Experts have neither; on a device they are another op.
    if (call.norm_weight || call.residual) calls_seen.insert(call_of(cuda::gemm_problem(call, context.determinism)));
    fused_linear({.ops = &cpu::select_kernel_set(), .op = context, .dtype = call.x.dtype()}, call);
  }
}

OpSet ops_with_sequences() {
  OpSet ops = cpu::select_kernel_set();
  ops.gemm_sequence = gemm_sequence;
  ops.most_sequence_rows = 4;
  return ops;
}

class PendingGemms : public testing::TestWithParam<std::string> {};

TEST_P(PendingGemms, RunBeforeTheirResultsAreRead) {
  const OpSet ops = ops_with_sequences();
  const Tensor ids = test::golden_tensor(GetParam(), "input_ids"), want = test::golden_tensor(GetParam(), "logits");
  calls_seen.clear(), most_together = 0;
  test::GoldenRunner runner(test::golden_folder(GetParam()), ops, DType::kF32);
  Tensor logits(DType::kF32, want.shape());
  const auto total = static_cast<int32_t>(ids.numel());
  for (int32_t begin = 0, step = 0; begin < total; ++step) {  // steps of 1 to 6 tokens
    const int32_t end = std::min(total, begin + 1 + step % 6);
    runner.run(ids, {.begin = begin, .end = end}, logits);
    begin = end;
  }
  EXPECT_TRUE(testing_support::all_close(logits, want, test::float32_tolerance(want)));
  std::set<Call> stated;
  for (const ModelGemm& gemm : stated_gemms(read_description(test::golden_folder(GetParam())), {})) {
    if (gemm.problem.norm || gemm.problem.residual) stated.insert(call_of(gemm.problem));
  }
  EXPECT_EQ(calls_seen, stated);
}

INSTANTIATE_TEST_SUITE_P(Families, PendingGemms,
                         testing::Values("llama", "qwen2", "qwen3", "qwen3_moe", "qwen3_next", "qwen3_5",
                                         "qwen3_5_moe"),
                         [](const auto& family) { return family.param; });

// Output projection, gate and up, down, and the next layer's projections.
TEST(PendingGemmsOfALayer, RunTogether) {
  const OpSet ops = ops_with_sequences();
  const Tensor ids = test::golden_tensor("qwen3", "input_ids"), want = test::golden_tensor("qwen3", "logits");
  most_together = 0;
  test::GoldenRunner runner(test::golden_folder("qwen3"), ops, DType::kF32);
  Tensor logits(DType::kF32, want.shape());
  runner.run(ids, {.begin = 0, .end = 5}, logits);
  EXPECT_EQ(most_together, 0U);  // five tokens: each GEMM by itself
  runner.run(ids, {.begin = 5, .end = 6}, logits);
  EXPECT_EQ(most_together, 4U);
}

}  // namespace
}  // namespace headrace
