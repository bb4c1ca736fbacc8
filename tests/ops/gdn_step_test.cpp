// gdn_step of every set that has it, against the ops that it stands for.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "headrace/ops/gdn_step.h"
#include "headrace/ops/reference/reference_ops.h"
#include "ops/kernel_sets.h"
#include "support/all_close.h"
#include "support/random.h"
#include "support/tolerances.h"

namespace headrace {
namespace {

using testing_support::all_close;
using testing_support::bit_equal;
using testing_support::gdn_tolerance;
using testing_support::poison;
using testing_support::Random;
using testing_support::random_tensor;

struct StepCase {
  int32_t requests = 3, k_heads = 2, group = 2;
  DType type = DType::kBF16;
  bool norm = true;
};

// Request r reads slot 1 + 2 r and writes the next; slot 0 is NaN.
struct StepProblem {
  explicit StepProblem(const StepCase& c) : StepProblem(c, c.requests, 1 + 2 * c.requests) {}
  StepProblem(const StepCase& c, int32_t tokens, int32_t pool) : k_heads(c.k_heads) {
    Random random(3);
    const int32_t heads = c.k_heads * c.group, channels = (2 * c.k_heads + heads) * 128;
    for (int32_t r = 0; r < c.requests; ++r) {
      spans.push_back({.q_off = r, .q_len = 1});
      slots.push_back({.read = 1 + 2 * r, .write = 2 + 2 * r});
    }
    x = random_tensor(random, c.type, {tokens, channels});
    conv_weight = random_tensor(random, c.type, {channels, 4}, 0.5);
    conv_state = random_tensor(random, c.type, {pool, channels, 3});
    a = random_tensor(random, c.type, {tokens, heads}, 0.5);
    b = random_tensor(random, c.type, {tokens, heads});
    a_log = random_tensor(random, DType::kF32, {heads}, 0.1);
    dt_bias = random_tensor(random, DType::kF32, {heads}, 0.1);
    state = random_tensor(random, DType::kF32, {pool, heads, 128, 128}, 0.3);
    if (c.norm) gate = random_tensor(random, c.type, {tokens, heads, 128});
    weight = random_tensor(random, DType::kF32, {128});
    out = Tensor(c.type, {tokens, heads, 128});
    poison(out);
    for (const Tensor* t : {&conv_state, &state}) {
      poison(t->view().select(0));
      for (const StateSlots& s : slots) poison(t->view().select(s.write));
    }
  }
  GDNStepArgs args() const {
    return {.x = x,
            .conv_weight = conv_weight,
            .conv_state = conv_state,
            .a = a,
            .b = b,
            .a_log = a_log,
            .dt_bias = dt_bias,
            .state = state,
            .num_k_heads = k_heads,
            .spans = spans,
            .slots = slots,
            .norm = {.gate = gate, .weight = weight},
            .out = out};
  }
  // The same through `ops` one by one.
  void run_apart(const OpSet& ops, const OpContext& context = {}) const {
    const Tensor mixed(x.dtype(), x.shape());
    ops.causal_conv1d(
        {.x = x, .weight = conv_weight, .state = conv_state, .spans = spans, .slots = slots, .out = mixed}, context);
    ops.gated_delta_rule({.qkv = mixed,
                          .a = a,
                          .b = b,
                          .a_log = a_log,
                          .dt_bias = dt_bias,
                          .state = state,
                          .num_k_heads = k_heads,
                          .spans = spans,
                          .slots = slots,
                          .out = out},
                         context);
    if (gate) ops.rms_norm({.x = out, .weight = weight, .gate = gate, .out = out}, context);
  }

  int32_t k_heads;
  Tensor x, conv_weight, conv_state, a, b, a_log, dt_bias, state, gate, weight, out;
  std::vector<KeySpan> spans;
  std::vector<StateSlots> slots;
};

class GDNStep : public testing_support::KernelSetTest {
 protected:
  void SetUp() override {
    KernelSetTest::SetUp();
    if (!IsSkipped() && ops().gdn_step == not_fused<const GDNStepArgs&>)
      GTEST_SKIP() << "kernel set '" << GetParam() << "' has no gdn_step";
  }
};

TEST_P(GDNStep, MatchesTheOpsThatItStandsFor) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int32_t group : {1, 2, 4}) {
      for (const bool norm : {false, true}) {
        SCOPED_TRACE(testing::Message() << name_of(type) << ", group " << group << ", norm " << norm);
        const StepCase c = {.group = group, .type = type, .norm = norm};
        const StepProblem want(c), got(c);
        want.run_apart(reference::ops());
        ASSERT_TRUE(ops().gdn_step(got.args(), {}));
        EXPECT_TRUE(all_close(got.out, want.out, gdn_tolerance(type, type)));
        EXPECT_TRUE(bit_equal(got.conv_state, want.conv_state));
        for (const StateSlots& s : want.slots) {
          EXPECT_TRUE(all_close(got.state.view().select(s.write), want.state.view().select(s.write),
                                gdn_tolerance(DType::kF32, type)));
          EXPECT_TRUE(bit_equal(got.state.view().select(s.read), want.state.view().select(s.read)));
        }
      }
    }
  }
}

TEST_P(GDNStep, UpdatesInPlaceAndKeepsNothingForPadding) {
  StepProblem want({}), got({});
  want.slots = got.slots = {{.read = 1, .write = 1}, {.read = kNoState, .write = 4}, {}};
  want.run_apart(reference::ops());
  ASSERT_TRUE(ops().gdn_step(got.args(), {}));
  EXPECT_TRUE(all_close(got.out, want.out, gdn_tolerance(DType::kBF16, DType::kBF16)));
  EXPECT_TRUE(bit_equal(got.conv_state, want.conv_state));
  for (const int64_t slot : {1, 4}) {
    EXPECT_TRUE(all_close(got.state.view().select(slot), want.state.view().select(slot),
                          gdn_tolerance(DType::kF32, DType::kBF16)));
  }
  for (const int64_t slot : {0, 2, 3, 5, 6}) {
    EXPECT_TRUE(bit_equal(got.state.view().select(slot), want.state.view().select(slot))) << slot;
  }
}

TEST_P(GDNStep, StrictBitsAreThoseOfTheOpsOneByOne) {
  const OpContext strict = {.determinism = Determinism::kStrict};
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const bool norm : {false, true}) {
      const StepCase c = {.type = type, .norm = norm};
      const StepProblem apart(c), fused(c);
      apart.run_apart(ops(), strict);
      ASSERT_TRUE(ops().gdn_step(fused.args(), strict));
      EXPECT_TRUE(bit_equal(fused.out, apart.out));
      EXPECT_TRUE(bit_equal(fused.state, apart.state));
    }
  }
}

// Heads are shared among blocks where they are few: requests alone, or 20 of them, against the same among 36.
TEST_P(GDNStep, StrictBitsDoNotDependOnTheNumberOfRequests) {
  const OpContext strict = {.determinism = Determinism::kStrict};
  for (const int32_t group : {1, 2, 4}) {
    SCOPED_TRACE(testing::Message() << "group " << group);
    const StepProblem many({.requests = 36, .group = group});
    ASSERT_TRUE(ops().gdn_step(many.args(), strict));
    for (const int32_t requests : {1, 20}) {
      const StepProblem few({.requests = 36, .group = group});
      GDNStepArgs args = few.args();
      const auto first = [requests](const TensorView& x) { return x.slice(0, requests); };
      args.x = first(args.x), args.a = first(args.a), args.b = first(args.b), args.out = first(args.out);
      args.norm.gate = first(args.norm.gate);
      args.spans = args.spans.first(static_cast<size_t>(requests));
      args.slots = args.slots.first(static_cast<size_t>(requests));
      ASSERT_TRUE(ops().gdn_step(args, strict));
      EXPECT_TRUE(bit_equal(args.out, first(many.out)));
      const TensorView states = many.state, conv_states = many.conv_state;
      for (int32_t r = 0; r < requests; ++r) {
        const int32_t slot = few.slots[static_cast<size_t>(r)].write;
        EXPECT_TRUE(bit_equal(few.state.view().select(slot), states.select(slot)));
        EXPECT_TRUE(bit_equal(few.conv_state.view().select(slot), conv_states.select(slot)));
      }
    }
  }
}

// One request, from slot 1 to slot 2, op by op or token by token; snapshots lie in the slots behind.
struct LongProblem : StepProblem {
  LongProblem(const StepCase& c, int32_t tokens) : StepProblem(c, tokens, 6), steps(tokens) {
    for (const int32_t kept : {1, 16, 150}) {
      const auto slot = static_cast<int32_t>(3 + snapshots.size());
      if (kept <= tokens) snapshots.push_back({.num_tokens = kept, .slot = slot});
    }
  }

  // In calls of `sizes` tokens, of which the last repeats. Only one call for all tokens takes snapshots.
  void run_ops(const OpSet& ops, const std::vector<int32_t>& sizes, const OpContext& context) const {
    const Tensor mixed(x.dtype(), x.shape());
    size_t call = 0;
    for (int32_t done = 0; done < steps; ++call) {
      const int32_t end = std::min(done + sizes[std::min(call, sizes.size() - 1)], steps);
      const std::vector<KeySpan> span = {{.q_len = end - done}};
      const std::vector<StateSlots> slot = {{.read = done == 0 ? 1 : 2, .write = 2}};
      const auto rows = [&](const Tensor& t) { return t.view().slice(done, end); };
      const std::span<const StateSnapshot> kept =
          end - done == steps ? std::span<const StateSnapshot>(snapshots) : std::span<const StateSnapshot>();
      ops.causal_conv1d({.x = rows(x),
                         .weight = conv_weight,
                         .state = conv_state,
                         .spans = span,
                         .slots = slot,
                         .snapshots = kept,
                         .out = rows(mixed)},
                        context);
      ops.gated_delta_rule({.qkv = rows(mixed),
                            .a = rows(a),
                            .b = rows(b),
                            .a_log = a_log,
                            .dt_bias = dt_bias,
                            .state = state,
                            .num_k_heads = k_heads,
                            .spans = span,
                            .slots = slot,
                            .snapshots = kept,
                            .out = rows(out)},
                           context);
      done = end;
    }
    if (gate) ops.rms_norm({.x = out, .weight = weight, .gate = gate, .out = out}, context);
  }
  // Slots of `expected` that are snapshots are compared when their token has passed.
  void run_steps(const OpSet& ops, const OpContext& context, const LongProblem& expected) const {
    for (int32_t t = 0; t < steps; ++t) {
      const std::vector<KeySpan> span = {{.q_len = 1}};
      const std::vector<StateSlots> slot = {{.read = t == 0 ? 1 : 2, .write = 2}};
      const auto row = [&](const Tensor& of) { return of ? of.view().slice(t, t + 1) : TensorView(); };
      ASSERT_TRUE(ops.gdn_step({.x = row(x),
                                .conv_weight = conv_weight,
                                .conv_state = conv_state,
                                .a = row(a),
                                .b = row(b),
                                .a_log = a_log,
                                .dt_bias = dt_bias,
                                .state = state,
                                .num_k_heads = k_heads,
                                .spans = span,
                                .slots = slot,
                                .norm = {.gate = row(gate), .weight = weight},
                                .out = row(out)},
                               context));
      for (const StateSnapshot& s : snapshots) {
        if (s.num_tokens != t + 1) continue;
        EXPECT_TRUE(bit_equal(state.view().select(2), expected.state.view().select(s.slot))) << "snapshot after " << t;
        EXPECT_TRUE(bit_equal(conv_state.view().select(2), expected.conv_state.view().select(s.slot)));
      }
    }
  }

  int32_t steps;
  std::vector<StateSnapshot> snapshots;
};

// Few blocks and many have different numbers of rows in a lane: five key heads with four value heads each are many.
TEST_P(GDNStep, StrictBitsOfAPromptAreThoseOfItsStepsAndOfAnySplit) {
  const OpContext strict = {.determinism = Determinism::kStrict};
  for (const DType type : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (const auto& [k_heads, group, tokens] : std::vector<std::array<int32_t, 3>>{{1, 2, 300}, {5, 4, 21}}) {
      for (const bool norm : {false, true}) {
        SCOPED_TRACE(testing::Message() << name_of(type) << ", " << k_heads * group << " heads, norm " << norm);
        const StepCase c = {.requests = 1, .k_heads = k_heads, .group = group, .type = type, .norm = norm};
        const LongProblem whole(c, tokens), split(c, tokens), steps(c, tokens);
        whole.run_ops(ops(), {tokens}, strict);
        split.run_ops(ops(), {17, 3, 64, 1, 16, 100, 5}, strict);
        EXPECT_TRUE(bit_equal(split.out, whole.out));
        EXPECT_TRUE(bit_equal(split.state.view().select(2), whole.state.view().select(2)));
        steps.run_steps(ops(), strict, whole);
        EXPECT_TRUE(bit_equal(steps.out, whole.out));
        EXPECT_TRUE(bit_equal(steps.state.view().select(2), whole.state.view().select(2)));
        EXPECT_TRUE(bit_equal(steps.conv_state.view().select(2), whole.conv_state.view().select(2)));
      }
    }
  }
}

TEST_P(GDNStep, RefusesRequestsOfSeveralTokens) {
  StepProblem p({});
  p.spans[2].q_len = 2;
  EXPECT_THROW(ops().gdn_step(p.args(), {}), Error);
  p.spans[2] = {.q_off = 1, .q_len = 1};  // the row of another
  EXPECT_THROW(ops().gdn_step(p.args(), {}), Error);
}

HR_INSTANTIATE_KERNEL_SETS(GDNStep);

}  // namespace
}  // namespace headrace
