// attention_step of every set that has it, against the ops that it stands for.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "headrace/ops/attention_step.h"
#include "headrace/ops/reference/reference_ops.h"
#include "ops/kernel_sets.h"
#include "support/all_close.h"
#include "support/random.h"
#include "support/tolerances.h"

namespace headrace {
namespace {

using testing_support::all_close;
using testing_support::attention_tolerance;
using testing_support::bit_equal;
using testing_support::lse_tolerance;
using testing_support::poison;
using testing_support::Random;
using testing_support::random_tensor;

struct StepRequest {
  int32_t context = 0, rows = 1;
  KeySpan::Kind kind = KeySpan::Kind::kCausal;
  enum class Stored : uint8_t { kAll, kFirst, kNone } stored = Stored::kAll;
};

struct StepCase {
  const char* name = "";
  std::vector<StepRequest> requests = {{.context = 70}};
  int64_t heads = 8, kv_heads = 2, dim = 128, rotated = 128;
  int64_t page_size = 16;
  bool norm = true, gate = true, infinite = false;
  bool codes = false;  // a pool of FP8
  int32_t window = kNoWindow;
  float cap = 0;
  std::optional<RotarySections> sections = std::nullopt;  // then positions have axes
};

// Queries lie with their gates as a projection leaves them; keys and values are columns of one tensor. What a slot
// holds that nobody stored is NaN.
struct StepProblem {
  StepProblem(const StepCase& of, DType of_type) : c(of), type(of_type) {
    for (const StepRequest& r : c.requests) add(r);
    const int64_t tokens = spans.back().q_off + spans.back().q_len;
    queries = random_tensor(random, type, {tokens, c.heads, 2 * c.dim});
    keys = random_tensor(random, type, {tokens, 2 * c.kv_heads, c.dim});
    q_weight = random_tensor(random, type, {c.dim}), k_weight = random_tensor(random, type, {c.dim});
    inv_freq = Tensor(DType::kF32, {c.rotated / 2});
    for (int64_t i = 0; i < c.rotated / 2; ++i) set_element(inv_freq, i, 1.0 / static_cast<double>(1 + i * i));
    out = Tensor(type, {tokens, c.heads, c.dim}), lse = Tensor(DType::kF32, {tokens, c.heads});
    axes = Tensor(DType::kI32, {RotarySections::kAxes, tokens});
    for (int64_t i = 0; i < axes.numel(); ++i) axes.data_as<int32_t>()[i] = static_cast<int32_t>(1 + 91 * i);
    fill_pool();
    if (c.infinite) spoil();
  }
  AttentionStepArgs args() const {
    const TensorView k = keys.view().narrow(1, 0, c.kv_heads), v = keys.view().narrow(1, c.kv_heads, 2 * c.kv_heads),
                     q = queries.view().narrow(2, 0, c.dim);
    const auto tokens = static_cast<int64_t>(slots.size());
    KVLayerView kv{.k = k_pool, .v = v_pool};
    if (c.codes) kv.k_scale = 0.5f, kv.v_scale = 0.25f;
    AttentionStepArgs a{
        .norm_rotary = {.q = q,
                        .k = k,
                        .weight_form = WeightForm::kPlusOne,
                        .positions = TensorView(const_cast<int32_t*>(positions.data()), DType::kI32, {tokens}),
                        .inv_freq = inv_freq,
                        .magnitude = 1.1f},
        .store = {.k = k,
                  .v = v,
                  .slots = TensorView(const_cast<int64_t*>(slots.data()), DType::kI64, {tokens}),
                  .kv = kv},
        .attention = {.q = q,
                      .k_new = k,
                      .v_new = v,
                      .kv = kv,
                      .spans = spans,
                      .page_table = table,
                      .scale = 0.1f,
                      .logit_cap = c.cap,
                      .window = c.window,
                      .out = out,
                      .lse = lse}};
    if (c.sections) a.norm_rotary.positions = axes, a.norm_rotary.sections = c.sections;
    if (c.norm) a.norm_rotary.q_weight = q_weight, a.norm_rotary.k_weight = k_weight;
    if (c.gate) a.gate = queries.view().narrow(2, c.dim, 2 * c.dim);
    return a;
  }

  const StepCase& c;
  DType type;
  Random random{5};
  Tensor queries, keys, q_weight, k_weight, inv_freq, axes, out, lse, k_pool, v_pool, table;
  std::vector<KeySpan> spans;
  std::vector<int32_t> positions;
  std::vector<int64_t> slots;

 private:
  int64_t pages_of_row() const {
    int64_t pages = 1;
    for (const StepRequest& r : c.requests) pages = std::max(pages, (r.context + r.rows - 1) / c.page_size + 1);
    return pages;
  }
  // Pages of a request lie together, the last ones first.
  int64_t slot(int64_t request, int64_t position) const {
    return ((request + 1) * pages_of_row() - position / c.page_size) * c.page_size + position % c.page_size;
  }
  void add(const StepRequest& r) {
    const auto request = static_cast<int32_t>(spans.size());
    const int32_t first = spans.empty() ? 0 : spans.back().q_off + spans.back().q_len;
    spans.push_back({.q_off = first,
                     .q_len = r.rows,
                     .ctx_len = r.context,
                     .phys0 = r.context,
                     .kind = r.kind,
                     .block_size = 4,
                     .page_row = request});
    for (int32_t i = 0; i < r.rows; ++i) {
      positions.push_back(r.context + i);
      const bool stored = r.stored == StepRequest::Stored::kAll || (r.stored == StepRequest::Stored::kFirst && i == 0);
      slots.push_back(stored ? slot(request, r.context + i) : kDoNotStore);
    }
  }
  void fill_pool() {
    const int64_t pages = pages_of_row(), requests = static_cast<int64_t>(spans.size());
    const Shape shape = {requests * pages + 1, c.kv_heads, c.page_size, c.dim};
    const DType held = c.codes ? DType::kE4M3 : type;
    const Tensor rows = random_tensor(random, held, {64, c.dim});
    k_pool = Tensor(held, shape), v_pool = Tensor(held, shape), table = Tensor(DType::kI32, {requests, pages});
    poison(k_pool);
    poison(v_pool);
    for (int64_t r = 0; r < requests; ++r) {
      for (int64_t i = 0; i < pages; ++i)
        table.data_as<int32_t>()[r * pages + i] = static_cast<int32_t>(slot(r, i * c.page_size) / c.page_size);
      for (int64_t at = 0; at < spans[static_cast<size_t>(r)].ctx_len; ++at) {
        for (const Tensor* side : {&k_pool, &v_pool}) fill(*side, slot(r, at), rows);
      }
    }
  }
  // One of `rows`: to make each anew would take longer than all else.
  void fill(const Tensor& side, int64_t at, const Tensor& rows) {
    for (int64_t h = 0; h < c.kv_heads; ++h) {
      const TensorView row = side.view().select(at / c.page_size).select(h).select(at % c.page_size),
                       from = rows.view().select(random.below(rows.dim(0)));
      std::memcpy(row.data(), from.data(), static_cast<size_t>(from.bytes()));
    }
  }
  // The last new value of each request is infinite in one column: rows that do not see it stay finite.
  void spoil() {
    for (const KeySpan& s : spans) {
      const TensorView last = keys.view().select(s.q_off + s.q_len - 1);
      for (int64_t h = 0; h < c.kv_heads; ++h)
        set_element(last.select(c.kv_heads + h), 5, std::numeric_limits<double>::infinity());
    }
  }
};

using Stored = StepRequest::Stored;
constexpr auto kBlock = KeySpan::Kind::kBlock;

std::vector<StepCase> cases() {
  return {
      {.name = "decode"},
      {.name = "decode_of_256", .requests = {{.context = 300}}, .dim = 256, .rotated = 64, .page_size = 64},
      {.name = "eight_decodes",
       .requests = {{0}, {1}, {63}, {64}, {127}, {128}, {500}, {.context = 9, .stored = Stored::kNone}},
       .page_size = 64},
      {.name = "first_token", .requests = {{.context = 0}}, .dim = 256, .rotated = 256},
      {.name = "block_of_4",
       .requests = {{320, 4, kBlock}},
       .heads = 32,
       .kv_heads = 8,
       .page_size = 64,
       .gate = false},
      {.name = "blocks_of_8",
       .requests = {{120, 8, kBlock, Stored::kFirst}, {4, 8, kBlock}, {0, 4, kBlock}, {300, 8, kBlock, Stored::kNone}},
       .heads = 16,
       .kv_heads = 4},
      {.name = "full_of_8", .requests = {{124, 8, KeySpan::Kind::kFull}}, .page_size = 64},
      {.name = "causal_of_7", .requests = {{61, 7}, {250, 3}}, .dim = 256, .rotated = 256},
      {.name = "sees_no_new_key", .requests = {{77, 4, KeySpan::Kind::kNone}, {0, 2, KeySpan::Kind::kNone}}},
      {.name = "heads_of_64", .requests = {{90, 4}, {200, 1}}, .heads = 4, .kv_heads = 4, .dim = 64, .rotated = 48},
      {.name = "heads_of_96", .requests = {{90, 4}}, .dim = 96, .rotated = 96, .norm = false},
      {.name = "groups_of_16", .requests = {{90, 2}}, .heads = 32, .gate = false},
      {.name = "window_and_cap", .requests = {{400, 4}, {3, 2}}, .window = 100, .cap = 2},
      {.name = "infinite_values", .requests = {{70, 4}, {129, 3}}, .infinite = true},
      {.name = "infinite_values_of_256", .requests = {{70, 2}, {129, 1}}, .dim = 256, .rotated = 64, .infinite = true},
      {.name = "infinite_values_without_gates", .requests = {{70, 4}}, .gate = false, .infinite = true},
      {.name = "many_rows", .requests = {{5, 40}, {33, 1}}},
      {.name = "positions_of_axes", .requests = {{90, 4}}, .sections = RotarySections{16, 24, 24}},

  };
}
// Contexts of several groups of strict mode's sums, and pools of codes, where one rounding may be the oracle's next
// one.
std::vector<StepCase> cases_of_bits() {
  return {{.name = "several_rounds", .requests = {{1500, 2}, {2000, 1}}, .dim = 256, .rotated = 64, .page_size = 64},
          {.name = "two_groups", .requests = {{4700, 4}}},
          {.name = "new_keys_begin_a_group", .requests = {{8191, 2}, {4096, 1}}, .dim = 256, .rotated = 64},
          {.name = "codes", .requests = {{70, 4}, {129, 1}}, .codes = true}};
}

class AttentionStep : public testing_support::KernelSetTest {
 protected:
  void SetUp() override {
    KernelSetTest::SetUp();
    if (!IsSkipped() && ops().attention_step == not_fused<const AttentionStepArgs&>)
      GTEST_SKIP() << "kernel set '" << GetParam() << "' has none";
  }
  void expect_bits_of_the_ops_one_by_one(const StepCase& c, DType type, Determinism determinism) const {
    SCOPED_TRACE(testing::Message() << c.name << ", " << name_of(type));
    const StepProblem together(c, type), apart(c, type);
    const OpContext context{.determinism = determinism};
    ASSERT_TRUE(ops().attention_step(together.args(), context));
    attention_step_apart(ops(), apart.args(), context);
    EXPECT_TRUE(bit_equal(together.out, apart.out));
    EXPECT_TRUE(bit_equal(together.lse, apart.lse));
    EXPECT_TRUE(bit_equal(together.k_pool, apart.k_pool));
    EXPECT_TRUE(bit_equal(together.v_pool, apart.v_pool));
  }
};

constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

TEST_P(AttentionStep, StrictBitsAreThoseOfTheOpsOneByOne) {
  for (const DType type : kTypes) {
    for (const StepCase& c : cases()) expect_bits_of_the_ops_one_by_one(c, type, Determinism::kStrict);
    for (const StepCase& c : cases_of_bits()) expect_bits_of_the_ops_one_by_one(c, type, Determinism::kStrict);
  }
}

TEST_P(AttentionStep, MatchesTheOracle) {
  for (const DType type : kTypes) {
    for (const StepCase& c : cases()) {
      SCOPED_TRACE(testing::Message() << c.name << ", " << name_of(type));
      const StepProblem got(c, type), want(c, type);
      ASSERT_TRUE(ops().attention_step(got.args(), {}));
      attention_step_apart(reference::ops(), want.args(), OpContext{});
      EXPECT_TRUE(all_close(got.out, want.out, attention_tolerance(type)));
      EXPECT_TRUE(all_close(got.lse, want.lse, lse_tolerance(type)));
    }
  }
}

TEST(AttentionStepArgs, RefusesRotatedHeadsThatAreNotAttended) {
  const StepCase c;
  const StepProblem one(c, DType::kF32), other(c, DType::kF32);
  AttentionStepArgs args = one.args();
  check(args);
  args.norm_rotary.q = other.args().norm_rotary.q;
  EXPECT_THROW(check(args), Error);
}

HR_INSTANTIATE_KERNEL_SETS(AttentionStep);
INSTANTIATE_TEST_SUITE_P(RecordedShort, AttentionStep, testing::Values(std::string(testing_support::kRecordedShortSet)),
                         [](const auto& set) { return set.param; });

}  // namespace
}  // namespace headrace
