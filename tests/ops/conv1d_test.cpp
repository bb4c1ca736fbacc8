// Every CPU kernel set's causal_conv1d against the oracle, element by element.
#include <cmath>

#include "headrace/ops/reference/reference_ops.h"
#include "ops/kernel_sets.h"
#include "support/all_close.h"
#include "support/random.h"
#include "support/refusal.h"
#include "support/tolerances.h"

namespace headrace {
namespace {

using testing_support::all_close;
using testing_support::bit_equal;
using testing_support::conv_tolerance;
using testing_support::copy_of;
using testing_support::KernelSetTest;
using testing_support::poison;
using testing_support::Random;
using testing_support::random_tensor;

struct ConvCase {
  int32_t channels = 37, width = 4;
  std::vector<int32_t> lens = {20};
  DType in = DType::kF32, pool = DType::kF32, out = DType::kF32;
};

// Request r reads slot 1 + 2 r and writes the next; slot 0 and two spare slots at the end are NaN.
struct ConvProblem {
  explicit ConvProblem(const ConvCase& c) {
    Random random(7);
    int32_t tokens = 0;
    for (const int32_t len : c.lens) {
      spans.push_back({.q_off = tokens, .q_len = len});
      const auto r = static_cast<int32_t>(slots.size());
      slots.push_back({.read = 1 + 2 * r, .write = 2 + 2 * r});
      tokens += len;
    }
    x = random_tensor(random, c.in, {tokens, c.channels});
    weight = random_tensor(random, c.in, {c.channels, c.width});
    state = random_tensor(random, c.pool, {first_spare() + 2, c.channels, c.width - 1});
    poison(state.view().select(0));
    for (const StateSlots& s : slots) poison(state.view().select(s.write));
    poison(state.view().slice(first_spare(), state.dim(0)));
    out = Tensor(c.out, {tokens, c.channels});
    poison(out);
  }
  int32_t first_spare() const { return 1 + 2 * static_cast<int32_t>(spans.size()); }
  CausalConv1dArgs args() const {
    return {
        .x = x, .weight = weight, .state = state, .spans = spans, .slots = slots, .snapshots = snapshots, .out = out};
  }

  Tensor x, weight, state, out;
  std::vector<KeySpan> spans;
  std::vector<StateSlots> slots;
  std::vector<StateSnapshot> snapshots;
};

class Conv1dKernels : public KernelSetTest {
 protected:
  void expect_matches_reference(const ConvCase& c, const std::vector<StateSnapshot>& snapshots = {}) {
    ConvProblem want(c), got(c);
    want.snapshots = got.snapshots = snapshots;
    reference::causal_conv1d(want.args(), {});
    ops().causal_conv1d(got.args(), {.threads = 2});
    EXPECT_TRUE(all_close(got.out, want.out, conv_tolerance(c.out)));
    EXPECT_TRUE(bit_equal(got.state, want.state));
  }
};

TEST_P(Conv1dKernels, MatchesReferenceAtEveryWidthAndLength) {
  for (int32_t width = 1; width <= 8; ++width) {
    for (int32_t len = 1; len <= 10; ++len) {
      SCOPED_TRACE(testing::Message() << "width " << width << ", length " << len);
      expect_matches_reference({.width = width, .lens = {len}});
    }
  }
}

// cuda_wide_taps: its state was kept in 16 floats whatever the width.
TEST_P(Conv1dKernels, TheWidestMatchesReferenceAndAWiderOneIsRefusedByName) {
  const int32_t most = GetParam().starts_with("cuda") ? 17 : 8;
  expect_matches_reference({.width = most, .lens = {1, 40}});
  ConvProblem wider({.width = most + 1, .lens = {3}});
  const auto refused = testing_support::refusal_of([&] { ops().causal_conv1d(wider.args(), {.threads = 2}); });
  EXPECT_EQ(refused.code, ErrorCode::kUnsupported);
  EXPECT_NE(refused.sentence.find("built are 1 to " + std::to_string(most)), std::string::npos) << refused.sentence;
}

TEST_P(Conv1dKernels, MatchesReferenceAtEveryChannelCount) {
  for (const int32_t channels : {1, 3, 4, 15, 16, 17, 255, 256, 257, 600}) {
    SCOPED_TRACE(channels);
    expect_matches_reference({.channels = channels, .lens = {1, 5}});
  }
}

TEST_P(Conv1dKernels, MatchesReferenceForEveryDType) {
  for (const DType in : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const DType pool : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const DType out : {DType::kF32, DType::kBF16, DType::kF16}) {
        SCOPED_TRACE(testing::Message() << name_of(in) << " with " << name_of(pool) << " to " << name_of(out));
        expect_matches_reference({.lens = {2, 30}, .in = in, .pool = pool, .out = out});
      }
    }
  }
}

TEST_P(Conv1dKernels, RaggedBatchWithSnapshotsMatchesReference) {
  const ConvCase c = {.lens = {1, 0, 9, 2}};
  const int32_t spare = ConvProblem(c).first_spare();
  expect_matches_reference(
      c, {{.request = 2, .num_tokens = 2, .slot = spare}, {.request = 2, .num_tokens = 8, .slot = spare + 1}});
}

TEST_P(Conv1dKernels, SplitAnywhereHasTheSameBits) {
  for (int32_t cut = 1; cut < 20; ++cut) {
    ConvProblem whole({}), parts({});
    ops().causal_conv1d(whole.args(), {});
    for (const int32_t from : {0, cut}) {
      parts.spans = {{.q_off = from, .q_len = from == 0 ? cut : 20 - cut}};
      ops().causal_conv1d(parts.args(), {});
      parts.slots[0].read = parts.slots[0].write;
    }
    EXPECT_TRUE(bit_equal(parts.out, whole.out));
    EXPECT_TRUE(bit_equal(parts.state, whole.state));
  }
}

TEST_P(Conv1dKernels, ReadsZerosAndWritesInPlaceAndKeepsNothing) {
  const ConvCase c = {.lens = {2, 2, 2}};
  ConvProblem want(c), got(c);
  want.slots = got.slots = {{.read = kNoState, .write = 2}, {.read = 3, .write = 3}, {.read = 5, .write = kNoState}};
  reference::causal_conv1d(want.args(), {});
  ops().causal_conv1d(got.args(), {.threads = 2});
  EXPECT_TRUE(all_close(got.out, want.out, conv_tolerance(DType::kF32)));
  EXPECT_TRUE(bit_equal(got.state, want.state));
}

TEST_P(Conv1dKernels, LargeSumsSaturateWithoutNaN) {
  ConvProblem want({}), got({});
  for (ConvProblem* p : {&want, &got}) {
    for (int64_t i = 0; i < p->x.numel(); ++i) set_element(p->x, i, 100 * element_as_double(p->x, i));
  }
  reference::causal_conv1d(want.args(), {});
  ops().causal_conv1d(got.args(), {});
  EXPECT_TRUE(all_close(got.out, want.out, {.abs = 2e-4, .rel = 2e-6}));
}

TEST_P(Conv1dKernels, W22_ConvolutionSumsInFloat) {
  // 256 + 0.5 + 0.5 - 256 is 1; every partial sum rounded to bfloat16 stays 256, and the result would be 0.
  ConvProblem p({.channels = 1, .lens = {4}, .in = DType::kBF16});
  const double weights[] = {1, 1, 1, 1}, inputs[] = {256, 0.5, 0.5, -256};
  for (int64_t i = 0; i < 4; ++i) {
    set_element(p.weight, i, weights[i]);
    set_element(p.x, i, inputs[i]);
  }
  ops().causal_conv1d(p.args(), {});
  EXPECT_NEAR(element_as_double(p.out, 3), 1 / (1 + std::exp(-1.0)), 1e-6);
}

HR_INSTANTIATE_KERNEL_SETS(Conv1dKernels);
HR_INSTANTIATE_RECORDED_SET(Conv1dKernels);

}  // namespace
}  // namespace headrace
