// Over 400 lines: one problem and its oracle serve all tests.
// Every CPU kernel set's paged_attention against the oracle where the conformance suite does not reach: the bits under
// strictness, splits over a long context, mixed dtypes, strided views, and the two head groupings.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "headrace/ops/reference/reference_ops.h"
#include "ops/kernel_sets.h"
#include "support/all_close.h"
#include "support/random.h"
#include "support/refusal.h"
#include "support/tolerances.h"

namespace headrace {
namespace {

using testing_support::all_close;
using testing_support::attention_tolerance;
using testing_support::bit_equal;
using testing_support::copy_of;
using testing_support::KernelSetTest;
using testing_support::lse_tolerance;
using testing_support::poison;
using testing_support::Random;
using testing_support::random_tensor;

struct Problem {
  int64_t heads = 4, kv_heads = 2, dim = 32, v_dim = 32, page_size = 16, tokens = 1, context = 0;
  DType q_type = DType::kF32, new_type = DType::kF32, pool_type = DType::kF32;
  float k_scale = 1, v_scale = 1;
  float logit_cap = 0;
  int32_t window = kNoWindow;
  uint64_t seed = 1;
};

// One request whose keys, cached and new, all lie in the pool as well: row i of k is what the pool holds at
// context + i, unless the dtypes differ. Pages are in descending order; the rest of the last page is NaN.
class Request {
 public:
  explicit Request(const Problem& problem) : c(problem), random_(problem.seed) {
    const int64_t total = c.context + c.tokens, pages = (total + c.page_size - 1) / c.page_size;
    k_pool_ = Tensor(c.pool_type, {pages + 1, c.kv_heads, c.page_size, c.dim});
    v_pool_ = Tensor(c.pool_type, {pages + 1, c.kv_heads, c.page_size, c.v_dim});
    if (is_int8()) {
      k_scales_ = Tensor(DType::kF32, {pages + 1, c.kv_heads, c.page_size});
      v_scales_ = Tensor(DType::kF32, {pages + 1, c.kv_heads, c.page_size});
    }
    poison(is_int8() ? k_scales_ : k_pool_);
    poison(is_int8() ? v_scales_ : v_pool_);
    table_ = Tensor(DType::kI32, {1, pages});
    for (int64_t i = 0; i < pages; ++i) table_.data_as<int32_t>()[i] = static_cast<int32_t>(pages - i);
    q_ = random_tensor(random_, c.q_type, {c.tokens, c.heads, c.dim});
    k_ = random_tensor(random_, c.new_type, {c.tokens, c.kv_heads, c.dim});
    v_ = random_tensor(random_, c.new_type, {c.tokens, c.kv_heads, c.v_dim});
    if (is_int8()) {
      store_codes(0, random_tensor(random_, DType::kF32, {c.context, c.kv_heads, c.dim}),
                  random_tensor(random_, DType::kF32, {c.context, c.kv_heads, c.v_dim}));
      return;
    }
    for (int64_t i = 0; i < c.context; ++i) {
      fill(k_pool_, i, random_tensor(random_, c.pool_type, {c.kv_heads, c.dim}));
      fill(v_pool_, i, random_tensor(random_, c.pool_type, {c.kv_heads, c.v_dim}));
    }
  }
  // Puts the new keys into the pool too, as a split prompt or decoding reads them.
  void store_new_keys() {
    if (is_int8()) return store_codes(c.context, k_, v_);
    for (int64_t i = 0; i < c.tokens; ++i) {
      fill(k_pool_, c.context + i, k_.view().select(i), c.k_scale);
      fill(v_pool_, c.context + i, v_.view().select(i), c.v_scale);
    }
  }

  // NaN in all of the new keys and values from `token` on.
  void spoil_from(int64_t token) {
    for (const TensorView& side : {k_.view().slice(token, c.tokens), v_.view().slice(token, c.tokens)}) poison(side);
  }
  // Makes every head of a cached key `times` as long.
  void lengthen_key(int64_t position, double times) {
    for (int64_t h = 0; h < c.kv_heads; ++h) {
      const TensorView key = cached_key(position, h);
      for (int64_t d = 0; d < c.dim; ++d) set_element(key, d, element_as_double(key, d) * times);
    }
  }
  // Makes a cached key one whose score with `head` of `token` is `log2_score` in base 2, and small with other queries.
  void aim_key(int64_t position, int64_t token, int64_t head, double log2_score) {
    const TensorView query = q_.view().select(token).select(head),
                     key = cached_key(position, head / (c.heads / c.kv_heads));
    double square = 0;
    for (int64_t d = 0; d < c.dim; ++d) square += std::pow(element_as_double(query, d), 2);
    const double times = log2_score / (square * kScale * std::log2(std::exp(1.0)));
    for (int64_t d = 0; d < c.dim; ++d) set_element(key, d, element_as_double(query, d) * times);
  }
  void set_query(int64_t token, int64_t head, int64_t d, double value) {
    set_element(q_.view().select(token).select(head), d, value);
  }
  // Element `d` of every head of a cached key.
  void set_cached_key(int64_t position, int64_t d, double value) {
    for (int64_t h = 0; h < c.kv_heads; ++h) set_element(cached_key(position, h), d, value);
  }
  // Element `d` of every head of a cached value.
  void set_cached_value(int64_t position, int64_t d, double value) {
    for (int64_t h = 0; h < c.kv_heads; ++h) set_cached_value_of(h, position, d, value);
  }
  void set_cached_value_of(int64_t head, int64_t position, int64_t d, double value) {
    const TensorView page = v_pool_.view().select(table_.data_as<int32_t>()[position / c.page_size]);
    set_element(page.select(head).select(position % c.page_size), d, value);
  }
  // NaN in the scales of one head of a cached key, or of its value.
  void spoil_scale(const Tensor& scales, int64_t position, int64_t kv_head) {
    const TensorView page = scales.view().select(table_.data_as<int32_t>()[position / c.page_size]);
    set_element(page.select(kv_head), position % c.page_size, std::numeric_limits<double>::quiet_NaN());
  }
  void spoil_key_scale(int64_t position, int64_t kv_head) { spoil_scale(k_scales_, position, kv_head); }
  void spoil_value_scale(int64_t position, int64_t kv_head) { spoil_scale(v_scales_, position, kv_head); }
  void set_new_key(int64_t token, int64_t kv_head, int64_t d, double value) {
    set_element(k_.view().select(token).select(kv_head), d, value);
  }
  // Element `d` of every head of a new key's value.
  void set_new_value(int64_t token, int64_t d, double value) {
    for (int64_t h = 0; h < c.kv_heads; ++h) set_element(v_.view().select(token).select(h), d, value);
  }

  struct Result {
    Tensor out, lse;
  };
  // Rows [begin, end) alone, after the rows before them were stored.
  Result run(const OpSet& ops, const OpContext& context, int64_t begin, int64_t end,
             HeadGrouping grouping = HeadGrouping::kGrouped, bool keys_given = true) const {
    const auto cached = static_cast<int32_t>(c.context + begin);
    const KeySpan span = {.q_len = static_cast<int32_t>(end - begin), .ctx_len = cached, .phys0 = cached};
    return run(ops, context, std::span(&span, 1), begin, end, grouping, keys_given);
  }
  // The same rows as requests of their own, all with this one's pages.
  Result run(const OpSet& ops, const OpContext& context, std::span<const KeySpan> spans, int64_t begin, int64_t end,
             HeadGrouping grouping = HeadGrouping::kGrouped, bool keys_given = true) const {
    Result result{Tensor(c.q_type, {end - begin, c.heads, c.v_dim}), Tensor(DType::kF32, {end - begin, c.heads})};
    poison(result.out);
    poison(result.lse);
    const TensorView none;
    ops.paged_attention({.q = q_.view().slice(begin, end),
                         .k_new = keys_given ? k_.view().slice(begin, end) : none,
                         .v_new = keys_given ? v_.view().slice(begin, end) : none,
                         .kv = layer(),
                         .spans = spans,
                         .page_table = table_,
                         .scale = kScale,
                         .logit_cap = c.logit_cap,
                         .window = c.window,
                         .grouping = grouping,
                         .out = result.out,
                         .lse = result.lse},
                        context);
    return result;
  }

  const Problem c;

 private:
  static constexpr float kScale = 0.2f;

  bool is_int8() const { return c.pool_type == DType::kI8; }
  KVLayerView layer() const {
    return {.k = k_pool_,
            .v = v_pool_,
            .k_scale = c.k_scale,
            .v_scale = c.v_scale,
            .k_token_scales = k_scales_,
            .v_token_scales = v_scales_};
  }
  // Stores rows of keys and values at `position` on in a pool of int8.
  void store_codes(int64_t position, const TensorView& k, const TensorView& v) {
    const Tensor slots(DType::kI64, {k.dim(0)});
    for (int64_t i = 0; i < k.dim(0); ++i) {
      const int64_t page = table_.data_as<int32_t>()[(position + i) / c.page_size];
      slots.data_as<int64_t>()[i] = page * c.page_size + (position + i) % c.page_size;
    }
    reference::ops().store_kv({.k = k, .v = v, .slots = slots, .kv = layer()}, {});
  }
  TensorView cached_key(int64_t position, int64_t kv_head) const {
    const TensorView page = k_pool_.view().select(table_.data_as<int32_t>()[position / c.page_size]);
    return page.select(kv_head).select(position % c.page_size);
  }
  void fill(const TensorView& pool, int64_t position, const TensorView& row, float scale = 1) {
    const TensorView page = pool.select(table_.data_as<int32_t>()[position / c.page_size]);
    for (int64_t h = 0; h < c.kv_heads; ++h) {
      const TensorView to = page.select(h).select(position % c.page_size), from = row.select(h);
      for (int64_t d = 0; d < to.dim(0); ++d)
        set_element(to, d, element_as_double(from, d) / static_cast<double>(scale));
    }
  }

  Random random_;
  Tensor q_, k_, v_, k_pool_, v_pool_, k_scales_, v_scales_, table_;  // scales: of int8
};

struct HeadShape;

class PagedAttentionKernels : public KernelSetTest {
 protected:
  static bool takes_int8() { return !GetParam().starts_with("cuda"); }
  // Rows of `spans` in batches of `parts`, and each request alone, have the bits that they have together with a prompt.
  void expect_strict_bits_beside_a_prompt(Problem problem, const HeadShape& shape, const std::vector<KeySpan>& spans,
                                          std::vector<std::pair<size_t, size_t>> parts);
  void expect_matches_reference(const Problem& c) {
    SCOPED_TRACE(testing::Message() << c.heads << "/" << c.kv_heads << " heads of " << c.dim << " and " << c.v_dim
                                    << ", page " << c.page_size << ", " << c.context << " cached, " << c.tokens
                                    << " new, " << name_of(c.q_type) << " " << name_of(c.new_type) << " "
                                    << name_of(c.pool_type));
    const Request request(c);
    const Request::Result want = request.run(reference::ops(), {}, 0, c.tokens);
    for (const HeadGrouping grouping : {HeadGrouping::kGrouped, HeadGrouping::kPerHead}) {
      for (const Determinism determinism : {Determinism::kFast, Determinism::kStrict}) {
        const auto got = request.run(ops(), {.threads = 2, .determinism = determinism}, 0, c.tokens, grouping);
        EXPECT_TRUE(all_close(got.out, want.out, attention_tolerance(c.q_type)));
        EXPECT_TRUE(all_close(got.lse, want.lse, lse_tolerance(c.q_type)));
      }
    }
  }
};

TEST_P(PagedAttentionKernels, EveryMixOfDTypesMatches) {
  const std::vector<DType> types = {DType::kF32, DType::kBF16, DType::kF16};
  for (const DType q : types) {
    for (const DType fresh : types) {
      for (const DType pool : types) {
        expect_matches_reference({.tokens = 5, .context = 70, .q_type = q, .new_type = fresh, .pool_type = pool});
      }
      expect_matches_reference({.tokens = 5,
                                .context = 70,
                                .q_type = q,
                                .new_type = fresh,
                                .pool_type = DType::kE4M3,
                                .k_scale = 0.7f,
                                .v_scale = 1.3f});
      if (!takes_int8()) continue;
      expect_matches_reference({.tokens = 5, .context = 70, .q_type = q, .new_type = fresh, .pool_type = DType::kI8});
    }
  }
}

TEST_P(PagedAttentionKernels, EveryGroupAndHeadSizeMatches) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const int64_t group : {5, 7, 33}) {
      for (const auto& [dim, v_dim] :
           std::vector<std::pair<int64_t, int64_t>>{{1, 3}, {80, 64}, {96, 96}, {192, 128}}) {
        expect_matches_reference({.heads = 2 * group,
                                  .dim = dim,
                                  .v_dim = v_dim,
                                  .tokens = 3,
                                  .context = 67,
                                  .q_type = type,
                                  .new_type = type,
                                  .pool_type = type});
      }
    }
  }
}

// What every set promises, CUDA's too: a token's rows and a few, and on a device, of equal sizes, those of a prompt.
TEST_P(PagedAttentionKernels, HeadsOfEveryMultipleOf8UpTo512Match) {
  const bool on_device = GetParam().starts_with("cuda");
  const auto expect_match = [&](int64_t dim, int64_t v_dim, DType type, int64_t tokens) {
    expect_matches_reference({.dim = dim,
                              .v_dim = v_dim,
                              .tokens = tokens,
                              .context = 14,
                              .q_type = type,
                              .new_type = type,
                              .pool_type = type});
  };
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (int64_t size = 8; size <= 512; size += 8) {
      for (const auto& [dim, v_dim] :
           {std::pair(size, size), std::pair(size, int64_t{64}), std::pair(int64_t{64}, size)}) {
        expect_match(dim, v_dim, type, 3);
        if (on_device) expect_match(dim, v_dim, type, 1);
      }
      if (on_device) expect_match(size, size, type, 24);
    }
  }
}

TEST_P(PagedAttentionKernels, LongContextInSplitsMatches) {
  for (const int64_t page_size : {1, 64}) {
    for (const int64_t context : {2047, 4500}) {
      expect_matches_reference({.dim = 16, .v_dim = 16, .page_size = page_size, .context = context});
    }
  }
  expect_matches_reference({.dim = 16, .v_dim = 16, .context = 4500, .window = 100});  // splits that see nothing
  for (const int32_t window : {kNoWindow, 100}) {  // 16-bit floats have GPU kernels, and a cut of keys, of their own
    expect_matches_reference({.dim = 16,
                              .v_dim = 16,
                              .page_size = 64,
                              .context = 9000,
                              .q_type = DType::kBF16,
                              .new_type = DType::kBF16,
                              .pool_type = DType::kBF16,
                              .window = window});
  }
  for (const int64_t dim :
       {16, 128}) {  // as do pools of FP8, and heads of which two blocks take half of the values each
    for (const DType pool : {DType::kBF16, DType::kE4M3}) {
      expect_matches_reference({.heads = 4,
                                .kv_heads = 1,
                                .dim = dim,
                                .v_dim = dim,
                                .page_size = 64,
                                .context = 9000,
                                .q_type = DType::kBF16,
                                .new_type = DType::kBF16,
                                .pool_type = pool});
    }
  }
}

// Four whole tiles and parts of two others; sizes with and without a remainder of the steps that the kernels take.
TEST_P(PagedAttentionKernels, FewRowsOfPairsMatch) {
  const DType type = DType::kBF16;
  for (const auto& [heads, kv_heads, tokens] :
       {std::tuple(2, 2, 1), std::tuple(2, 1, 1), std::tuple(6, 2, 1), std::tuple(4, 1, 1), std::tuple(5, 1, 1),
        std::tuple(16, 2, 1), std::tuple(3, 1, 2), std::tuple(4, 1, 2), std::tuple(9, 1, 1), std::tuple(13, 1, 1),
        std::tuple(8, 1, 2), std::tuple(17, 1, 1)}) {
    for (const auto& [dim, v_dim] : {std::pair(32, 32), std::pair(96, 160), std::pair(128, 64)}) {
      const Problem c = {.heads = heads,
                         .kv_heads = kv_heads,
                         .dim = dim,
                         .v_dim = v_dim,
                         .tokens = tokens,
                         .context = 331,
                         .q_type = type,
                         .new_type = type,
                         .pool_type = type};
      expect_matches_reference(c);
      Problem cut = c;
      cut.logit_cap = 0.5f;
      cut.window = 230;
      cut.page_size = 1;
      expect_matches_reference(cut);
      cut.page_size = 8;  // half of what an AMX tile loads from a page
      expect_matches_reference(cut);
      if (dim != 32) continue;
      cut.page_size = 16;
      for (cut.window = 265; cut.window < 270; ++cut.window) {  // tiles whose first key one token sees and one does not
        expect_matches_reference(cut);
      }
      cut.context = 2300, cut.window = 2100,
      cut.page_size = 16;  // more keys than a GPU's blocks share out in a cluster
      expect_matches_reference(cut);
    }
  }
}

// Few rows over a pool of FP8: contexts that end everywhere in a warp's part of a tile, more pages than a warp knows at
// once, pieces of groups of keys, and one head's keys shared out among all blocks.
TEST_P(PagedAttentionKernels, FewRowsOverCodesMatch) {
  if (!GetParam().starts_with("cuda")) GTEST_SKIP() << "the oracle takes long";
  struct Case {
    int64_t context, dim = 128, heads = 4, kv_heads = 1, page_size = 64, tokens = 1;
    DType type = DType::kBF16;
    int32_t window = kNoWindow;
  };
  for (const Case& x :
       {Case{1}, Case{31}, Case{32}, Case{33}, Case{127}, Case{128}, Case{129}, Case{500, 64, 16, 2}, Case{4095},
        Case{8200, 128, 8, 2, 16}, Case{4500, 16, 132, 132, 16}, Case{4500, 16, 132, 132, 8},
        Case{2500, 256, 16, 2, 64}, Case{2500, 256, 16, 2, 16, 2}, Case{700, 80, 16, 4, 32, 4},
        Case{2500, 128, 8, 2, 128, 3, DType::kF16}, Case{2500, 128, 8, 2, 64, 4, DType::kBF16, 300}}) {
    expect_matches_reference({.heads = x.heads,
                              .kv_heads = x.kv_heads,
                              .dim = x.dim,
                              .v_dim = x.dim,
                              .page_size = x.page_size,
                              .tokens = x.tokens,
                              .context = x.context,
                              .q_type = x.type,
                              .new_type = x.type,
                              .pool_type = DType::kE4M3,
                              .k_scale = 0.7f,
                              .v_scale = 1.3f,
                              .window = x.window});
  }
}

// Four rows of four heads over 300 cached keys.
constexpr int64_t kCodesTokens = 4, kCodesContext = 300, kCodesDim = 128;
Problem problem_over_codes() {
  return {.heads = 4,
          .kv_heads = 1,
          .dim = kCodesDim,
          .v_dim = kCodesDim,
          .page_size = 64,
          .tokens = kCodesTokens,
          .context = kCodesContext,
          .q_type = DType::kBF16,
          .new_type = DType::kBF16,
          .pool_type = DType::kE4M3};
}

// Where keys are codes a GPU makes half floats of queries: of such as those cannot hold, or hold beside others in a
// row.
TEST_P(PagedAttentionKernels, QueriesOfEverySizeMatchOverCodes) {
  for (const float k_scale : {1.0f, 0x1p-30f}) {
    SCOPED_TRACE(k_scale);
    Problem problem = problem_over_codes();
    problem.k_scale = k_scale;
    Request request(problem);
    const std::array<double, kCodesTokens> sizes = {0x1p18, 0x1p-30, 0, 0x1p-133};
    for (int64_t d = 0; d < kCodesDim; ++d) {
      for (int64_t i = 0; i < kCodesTokens; ++i)
        request.set_query(i, 0, d, sizes[static_cast<size_t>(i)] * static_cast<double>(d % 5 - 2));
    }
    for (int64_t i = 0; i < kCodesTokens; ++i) request.set_query(i, 1, 17, 0x1p17);  // beside numbers near 1
    for (int64_t i = 0; i < kCodesContext; ++i) request.set_cached_key(i, 17, i == 40 ? 0x1p-8 : 0);
    const auto run = [&](const OpSet& set, Determinism determinism) {
      return request.run(set, {.threads = 2, .determinism = determinism}, 0, kCodesTokens);
    };
    const Request::Result want = run(reference::ops(), Determinism::kFast);
    for (const Determinism determinism : {Determinism::kFast, Determinism::kStrict}) {
      const Request::Result got = run(ops(), determinism);
      EXPECT_TRUE(all_close(got.out, want.out, attention_tolerance(DType::kBF16)));
      EXPECT_TRUE(all_close(got.lse, want.lse, lse_tolerance(DType::kBF16)));
    }
  }
}

// Scores so large that float32 holds them to a half or to tens: the largest has all the weight, as half floats do
// not say by themselves.
TEST_P(PagedAttentionKernels, HugeScoresMatchOverCodes) {
  for (const double size : {0x1p21, 0x1p25, 0x1p27}) {
    SCOPED_TRACE(size);
    Request request(problem_over_codes());
    for (int64_t d = 0; d < kCodesDim; ++d) {
      for (int64_t i = 0; i < kCodesTokens; ++i) request.set_query(i, 0, d, d == 17 ? size : 0);
    }
    for (int64_t i = 0; i < kCodesContext; ++i) request.set_cached_key(i, 17, i == 40 ? 16 : i % 3 == 0 ? -8 : 2);
    for (const Determinism determinism : {Determinism::kFast, Determinism::kStrict}) {
      const auto run = [&](const OpSet& set) {
        return request.run(set, {.threads = 2, .determinism = determinism}, 0, kCodesTokens);
      };
      const Request::Result got = run(ops()), want = run(reference::ops());
      EXPECT_TRUE(all_close(got.out, want.out, attention_tolerance(DType::kBF16)));
      EXPECT_TRUE(all_close(got.lse, want.lse, lse_tolerance(DType::kBF16)));
    }
  }
}

// A code that is NaN spoils what sees it, and nothing else of the tile.
TEST_P(PagedAttentionKernels, ACodeThatIsNaNSpoilsWhatSeesItAlone) {
  constexpr int64_t kColumn = 5;
  constexpr int32_t kWindow = 100;
  Problem problem = problem_over_codes();
  problem.window = kWindow;
  Request request(problem);
  const OpContext fast = {.threads = 2};
  const Request::Result clean = request.run(ops(), fast, 0, kCodesTokens);
  request.set_cached_value(kCodesContext + 1 - kWindow + 1, kColumn, std::numeric_limits<double>::quiet_NaN());
  const Request::Result spoiled = request.run(ops(), fast, 0, kCodesTokens);
  for (int64_t row = 0; row < kCodesTokens; ++row) {
    for (int64_t i = 0; i < 4 * kCodesDim; ++i) {
      const double before = element_as_double(clean.out.view().select(row), i),
                   now = element_as_double(spoiled.out.view().select(row), i);
      if (row <= 1 && i % kCodesDim == kColumn) {
        EXPECT_TRUE(std::isnan(now)) << "row " << row << ", element " << i;
      } else {
        ASSERT_NEAR(now, before, 0.02) << "row " << row << ", element " << i;
      }
    }
  }
}

// One request's few rows over more keys than one cluster of a GPU's blocks takes: tiles of 64 and 128 keys and rounds
// of all blocks that end everywhere, keys in the pool and beside it, and what hides some of them.
TEST_P(PagedAttentionKernels, FewRowsOfOneLongRequestMatch) {
  if (!GetParam().starts_with("cuda")) GTEST_SKIP() << "the oracle takes long";
  struct Case {
    int64_t context, dim = 64, heads = 8, kv_heads = 8, page_size = 64, tokens = 1;
    DType type = DType::kBF16;
    float cap = 0;
    int32_t window = kNoWindow, hole_begin = 0, hole_end = 0;
  };
  for (const Case& x : {Case{2047},
                        Case{2048},
                        Case{2049},
                        Case{2175},
                        Case{3071},
                        Case{3072},
                        Case{8200, 64, 2, 2},
                        Case{4223, 128, 8, 8, 256},
                        Case{6200, 64, 8, 8, 16, 3},
                        Case{2500, 128, 16, 8, 16, 2, DType::kF16},
                        Case{2500, 256, 8, 2, 64, 2},
                        Case{2400, 256, 4, 1, 64, 2},
                        Case{2300, 128, 6, 3, 64, 5},
                        Case{15500, 64, 1, 1},
                        Case{2600, 64, 24, 8, 64, 5},
                        Case{2300, 64, 8, 8, 8},
                        Case{2300, 64, 8, 8, 1},
                        Case{2600, 96, 8, 2, 64, 4},
                        Case{2600, 128, 8, 4, 64, 2, DType::kBF16, 0.5f},
                        Case{2600, 64, 16, 8, 64, 3, DType::kBF16, 0, 2100},
                        Case{2600, 64, 8, 4, 64, 2, DType::kBF16, 0, kNoWindow, 70, 900}}) {
    SCOPED_TRACE(testing::Message() << x.heads << "/" << x.kv_heads << " heads of " << x.dim << ", page " << x.page_size
                                    << ", " << x.context << " cached, " << x.tokens << " new");
    Request request({.heads = x.heads,
                     .kv_heads = x.kv_heads,
                     .dim = x.dim,
                     .v_dim = x.dim,
                     .page_size = x.page_size,
                     .tokens = x.tokens,
                     .context = x.context,
                     .q_type = x.type,
                     .new_type = x.type,
                     .pool_type = x.type,
                     .logit_cap = x.cap,
                     .window = x.window});
    const auto cached = static_cast<int32_t>(x.context);
    const KeySpan span = {.q_len = static_cast<int32_t>(x.tokens),
                          .ctx_len = cached,
                          .phys0 = cached,
                          .hole_begin = x.hole_begin,
                          .hole_end = x.hole_end};
    const auto run = [&](const OpSet& set, bool keys_given) {
      return request.run(set, {.threads = 2}, std::span(&span, 1), 0, x.tokens, HeadGrouping::kGrouped, keys_given);
    };
    const auto want = run(reference::ops(), true);
    for (const bool stored : {false, true}) {
      if (stored) request.store_new_keys();
      const auto got = run(ops(), !stored), again = run(ops(), !stored);
      EXPECT_TRUE(all_close(got.out, want.out, attention_tolerance(x.type)));
      EXPECT_TRUE(all_close(got.lse, want.lse, lse_tolerance(x.type)));
      EXPECT_TRUE(bit_equal(again.out, got.out) && bit_equal(again.lse, got.lse));
    }
  }
}

// A hidden value that is infinite or NaN, where several blocks of threads share a row's elements: rows of a block,
// parts of a row for each, and heads of every size that kernels are built for.
TEST_P(PagedAttentionKernels, AValueThatIsNaNReachesNoOtherRowOfALongRequest) {
  if (!GetParam().starts_with("cuda")) GTEST_SKIP() << "the oracle takes long";
  constexpr int64_t kTokens = 2, kElement = 37;
  const DType type = DType::kBF16;
  struct Case {
    int64_t heads, kv_heads, dim;
  };
  for (const auto& [heads, kv_heads, dim] :
       {Case{4, 2, 64}, Case{2, 2, 64}, Case{16, 8, 64}, Case{2, 1, 128}, Case{2, 2, 256}}) {
    Request request({.heads = heads,
                     .kv_heads = kv_heads,
                     .dim = dim,
                     .v_dim = dim,
                     .page_size = 64,
                     .tokens = kTokens,
                     .context = 2700,
                     .q_type = type,
                     .new_type = type,
                     .pool_type = type});
    const auto want = request.run(reference::ops(), {}, 0, kTokens);
    request.set_new_value(1, kElement, std::numeric_limits<double>::quiet_NaN());
    for (const Determinism determinism : {Determinism::kFast, Determinism::kStrict}) {
      SCOPED_TRACE(testing::Message() << heads << "/" << kv_heads << " heads of " << dim
                                      << (determinism == Determinism::kStrict ? ", strict" : ""));
      const auto got = request.run(ops(), {.threads = 2, .determinism = determinism}, 0, kTokens);
      EXPECT_TRUE(all_close(copy_of(got.out.view().slice(0, 1)), copy_of(want.out.view().slice(0, 1)),
                            attention_tolerance(type)));
      for (int64_t h = 0; h < heads; ++h) {
        const TensorView row = got.out.view().select(1).select(h), clean = want.out.view().select(1).select(h);
        EXPECT_TRUE(std::isnan(element_as_double(row, kElement)));
        for (const auto& [from, to] : {std::pair(int64_t{0}, kElement), std::pair(kElement + 1, dim)})
          EXPECT_TRUE(
              all_close(copy_of(row.slice(from, to)), copy_of(clean.slice(from, to)), attention_tolerance(type)));
      }
    }
  }
}

// A prompt's rows meet a key whose score is beyond all others by what weights can follow, and by more than float holds
// of its power: in pieces that a block has for itself, in shares of several blocks, and in heads of every size that
// kernels are built for.
TEST_P(PagedAttentionKernels, ScoresFarAboveOthersOfAPromptMatch) {
  if (!GetParam().starts_with("cuda")) GTEST_SKIP() << "the oracle takes long";
  struct Case {
    int64_t heads, kv_heads, dim;
    std::vector<double> times;
  };
  for (const auto& [heads, kv_heads, dim, all_times] :
       {Case{264, 132, 16, {400}}, Case{4, 2, 64, {400}}, Case{4, 2, 128, {12, 400}}, Case{4, 2, 256, {40}}}) {
    for (const double times : all_times) {
      SCOPED_TRACE(testing::Message() << heads << "/" << kv_heads << " heads of " << dim << ", a key times " << times);
      Request request({.heads = heads,
                       .kv_heads = kv_heads,
                       .dim = dim,
                       .v_dim = dim,
                       .page_size = 64,
                       .tokens = 36,
                       .context = 270,
                       .q_type = DType::kBF16,
                       .new_type = DType::kBF16,
                       .pool_type = DType::kBF16});
      request.store_new_keys();
      for (const int64_t key : {10, 150}) request.lengthen_key(key, times);
      const auto want = request.run(reference::ops(), {}, 0, 36, HeadGrouping::kGrouped, false);
      for (const Determinism determinism : {Determinism::kFast, Determinism::kStrict}) {
        const auto got =
            request.run(ops(), {.threads = 2, .determinism = determinism}, 0, 36, HeadGrouping::kGrouped, false);
        EXPECT_TRUE(all_close(got.out, want.out, attention_tolerance(DType::kBF16)));
        EXPECT_TRUE(all_close(got.lse, want.lse, lse_tolerance(DType::kBF16)));
      }
    }
  }
}

// Of so many keys a GPU takes one half of the heads behind the other, but not for the few rows of half the prompt.
TEST_P(PagedAttentionKernels, APromptWhoseHeadsTakeTurnsHasTheBitsOfItsHalves) {
  if (!GetParam().starts_with("cuda")) GTEST_SKIP() << "of a GPU's kernels";
  constexpr int64_t kTokens = 66, kHeads = 504;  // of a tile of rows each: a half of them fills 132 blocks twice
  Request request({.heads = kHeads,
                   .kv_heads = kHeads,
                   .dim = 128,
                   .v_dim = 128,
                   .tokens = kTokens,
                   .context = 18,
                   .q_type = DType::kBF16,
                   .new_type = DType::kBF16,
                   .pool_type = DType::kBF16});
  request.store_new_keys();
  const auto rows = [&](Determinism determinism, int64_t begin, int64_t end) {
    return request.run(ops(), {.threads = 2, .determinism = determinism}, begin, end, HeadGrouping::kGrouped, false);
  };
  const auto whole = rows(Determinism::kStrict, 0, kTokens), fast = rows(Determinism::kFast, 0, kTokens);
  for (const int64_t begin : {int64_t{0}, kTokens / 2}) {
    const int64_t end = begin + kTokens / 2;
    const auto half = rows(Determinism::kStrict, begin, end);
    EXPECT_TRUE(bit_equal(whole.out.view().slice(begin, end), half.out));
    EXPECT_TRUE(bit_equal(whole.lse.view().slice(begin, end), half.lse));
    EXPECT_TRUE(all_close(fast.out.view().slice(begin, end), half.out, attention_tolerance(DType::kBF16)));
    EXPECT_TRUE(all_close(fast.lse.view().slice(begin, end), half.lse, lse_tolerance(DType::kBF16)));
  }
}

// A prompt finds weights before it knows whether a row's exponents have to follow a larger score, and has the bits of
// its rows alone, whose kernels look at every tile: with scores that rise, one row's at a time, by less and by more
// than those follow.
TEST_P(PagedAttentionKernels, StrictPromptWhoseScoresRiseHasTheBitsOfItsRowsAlone) {
  if (!GetParam().starts_with("cuda")) GTEST_SKIP() << "of a GPU's kernels";
  constexpr int64_t kTokens = 52, kContext = 4480, kReference = 20;  // the row that the oracle finds
  const OpContext strict = {.threads = 2, .determinism = Determinism::kStrict};
  using Kind = std::pair<int64_t, DType>;
  for (const auto& [dim, type] : {Kind(64, DType::kBF16), Kind(128, DType::kBF16), Kind(128, DType::kF16),
                                  Kind(256, DType::kBF16), Kind(128, DType::kE4M3)}) {
    const DType rows = type == DType::kE4M3 ? DType::kBF16 : type;
    Request request({.heads = 4,
                     .kv_heads = 1,
                     .dim = dim,
                     .v_dim = dim,
                     .page_size = 64,
                     .tokens = kTokens,
                     .context = kContext,
                     .q_type = rows,
                     .new_type = rows,
                     .pool_type = type});
    request.store_new_keys();
    for (int64_t i = 0; i < 25; ++i) {
      const double rise = 6 + 0.5 * static_cast<double>(i);
      request.aim_key(140 + i * 131, 2 * i, i % 4, rise), request.aim_key(640 + i * 131, 2 * i, i % 4, rise + 9);
      if (i < 12) request.aim_key(4230 + i * 15, 2 * i + 1, 3 - i % 4, rise);
    }
    const auto run = [&](const OpSet& set, int64_t begin, int64_t end) {
      return request.run(set, strict, begin, end, HeadGrouping::kGrouped, false);
    };
    SCOPED_TRACE(testing::Message() << "heads of " << dim << ", " << name_of(type));
    const Request::Result whole = run(ops(), 0, kTokens);
    for (int64_t row = 0; row < kTokens; row += 1 + row % 3) {
      const Request::Result alone = run(ops(), row, row + 1);
      EXPECT_TRUE(bit_equal(alone.out, copy_of(whole.out.view().slice(row, row + 1)))) << "row " << row;
      EXPECT_TRUE(bit_equal(alone.lse, copy_of(whole.lse.view().slice(row, row + 1)))) << "row " << row;
    }
    if (type != DType::kBF16) continue;
    const Request::Result want = run(reference::ops(), kReference, kReference + 1);
    const auto row = [&](const Tensor& all) { return copy_of(all.view().slice(kReference, kReference + 1)); };
    EXPECT_TRUE(all_close(row(whole.out), want.out, attention_tolerance(type)));
    EXPECT_TRUE(all_close(row(whole.lse), want.lse, lse_tolerance(type)));
  }
}

// A prompt of so many rows puts a group's sums away in the middle of its work, which rows alone never do. Here later
// groups have scores far above those before, for some rows, and columns hold values near the least that memory's units
// take for numbers. Then a value is NaN: rows of its tile that do not see it are done again, beside other rows' sums.
TEST_P(PagedAttentionKernels, StrictPromptOverSeveralGroupsHasTheBitsOfItsRowsAlone) {
  if (!GetParam().starts_with("cuda")) GTEST_SKIP() << "of a GPU's kernels";
  constexpr int64_t kTokens = 2135, kContext = 14256,
                    kHeads = 16;  // more tiles of rows than a GPU's blocks take at once
  // Three keys behind the first of a tile of 128, so that the rows of one block of 128 meet it, and no others.
  constexpr int64_t kSpoiled = 2131, kFirstBeside = kSpoiled - 3;
  static_assert((kContext + kFirstBeside) % 128 == 0 && kFirstBeside * kHeads % 128 == 0);
  const OpContext strict = {.threads = 2, .determinism = Determinism::kStrict};
  using Kind = std::tuple<int64_t, DType, bool>;  // head size, what the pool holds, whether columns are tiny
  for (const auto& [dim, pool, tiny] :
       {Kind(256, DType::kBF16, false), Kind(256, DType::kBF16, true), Kind(256, DType::kF16, false),
        Kind(256, DType::kE4M3, false), Kind(128, DType::kBF16, true), Kind(128, DType::kE4M3, false)}) {
    const DType type = pool == DType::kE4M3 ? DType::kBF16 : pool;
    Request request({.heads = kHeads,
                     .kv_heads = 1,
                     .dim = dim,
                     .v_dim = dim,
                     .page_size = 64,
                     .tokens = kTokens,
                     .context = kContext,
                     .q_type = type,
                     .new_type = type,
                     .pool_type = pool});
    request.store_new_keys();
    std::vector<int64_t> rows = {0, 127, 1024, kTokens - 1};
    for (int64_t group = 1; group < 3; ++group) {  // of 4096 keys; a head of each of these rows rises in it
      for (int64_t i = 0; i < 4; ++i) {
        rows.push_back(group * 800 + 70 * i);
        request.aim_key(group * 4096 + 37 + 131 * i, rows.back(), i, 12 + 9 * static_cast<double>(i));
      }
    }
    for (int64_t i = 0; tiny && i < kContext; ++i) {
      request.set_cached_value(i, 0, 0x1p-125 * static_cast<double>(1 + i % 3)), request.set_cached_value(i, 9, 0);
      request.set_cached_value(i, dim - 1, i % 2 == 0 ? 0x1p-39 : -0x1p-39);
    }
    const auto run = [&](int64_t begin, int64_t end) {
      return request.run(ops(), strict, begin, end, HeadGrouping::kGrouped, false);
    };
    SCOPED_TRACE(testing::Message() << "heads of " << dim << ", " << name_of(pool) << (tiny ? ", tiny values" : ""));
    const Request::Result whole = run(0, kTokens);
    for (const int64_t row : rows) {
      const Request::Result alone = run(row, row + 1);
      EXPECT_TRUE(bit_equal(alone.out, copy_of(whole.out.view().slice(row, row + 1)))) << "row " << row;
      EXPECT_TRUE(bit_equal(alone.lse, copy_of(whole.lse.view().slice(row, row + 1)))) << "row " << row;
    }
    if (dim != 256 || pool != DType::kBF16 || tiny) continue;  // rows done again take long
    request.set_cached_value(kContext + kSpoiled, dim / 2, std::numeric_limits<double>::quiet_NaN());
    const Request::Result spoiled = run(0, kTokens);
    const auto part = [](const Request::Result& of, int64_t begin, int64_t end) {
      return copy_of(of.out.view().slice(begin, end));
    };
    EXPECT_TRUE(bit_equal(part(spoiled, 0, kFirstBeside), part(whole, 0, kFirstBeside)));
    EXPECT_TRUE(all_close(part(spoiled, kFirstBeside, kSpoiled), part(whole, kFirstBeside, kSpoiled),
                          attention_tolerance(DType::kBF16)));
    for (int64_t row = kFirstBeside; row < kTokens; ++row) {
      EXPECT_TRUE(
          bit_equal(copy_of(spoiled.lse.view().slice(row, row + 1)), copy_of(whole.lse.view().slice(row, row + 1))));
      for (int64_t i = 0; i < kHeads * dim; ++i) {
        const double got = element_as_double(spoiled.out.view().select(row), i);
        if (i % dim != dim / 2) {
          ASSERT_EQ(got, element_as_double(whole.out.view().select(row), i)) << "row " << row << ", element " << i;
        } else {
          EXPECT_EQ(std::isnan(got), row >= kSpoiled) << "row " << row << ", element " << i;
        }
      }
    }
  }
}

// Small heads, so that a context of thousands of keys is cheap.
Problem long_problem(int64_t tokens, int64_t context) {
  return {.heads = 4,
          .kv_heads = 1,
          .dim = 16,
          .v_dim = 16,
          .page_size = 64,
          .tokens = tokens,
          .context = context,
          .q_type = DType::kBF16,
          .new_type = DType::kBF16,
          .pool_type = DType::kBF16};
}

// Rows of a long context: decoded alone their keys are shared out between blocks of threads, in a chunk they are not.
TEST_P(PagedAttentionKernels, StrictLongContextHasTheSameBitsAloneAndInAChunk) {
  const OpContext strict = {.threads = 2, .determinism = Determinism::kStrict};
  constexpr int64_t kTokens = 40;
  using Kind = std::tuple<int64_t, DType, float>;  // head size, what the pool holds, scale of keys and values
  for (const auto& [dim, pool, scale] :
       {Kind(16, DType::kBF16, 1.0f), Kind(128, DType::kBF16, 1.0f), Kind(256, DType::kBF16, 1.0f),
        Kind(16, DType::kE4M3, 0.013f), Kind(128, DType::kE4M3, 0.013f), Kind(256, DType::kE4M3, 0.013f)}) {
    SCOPED_TRACE(testing::Message() << "heads of " << dim << ", pool of " << name_of(pool));
    Problem problem = long_problem(kTokens, 8180);
    problem.dim = problem.v_dim = dim, problem.pool_type = pool, problem.k_scale = problem.v_scale = scale;
    Request request(problem);
    const Request::Result whole = request.run(ops(), strict, 0, kTokens);
    request.store_new_keys();
    for (const int64_t row : {0, 11, 12, 39}) {  // the cut at 8192 keys lies between 11 and 12
      const Request::Result alone = request.run(ops(), strict, row, row + 1);
      EXPECT_TRUE(bit_equal(alone.out, copy_of(whole.out.view().slice(row, row + 1)))) << "row " << row;
      EXPECT_TRUE(bit_equal(alone.lse, copy_of(whole.lse.view().slice(row, row + 1)))) << "row " << row;
    }
  }
}

// The same rows as a prompt with its keys given, read from the pool, in chunks of few rows, together as requests of one
// row, and decoded one by one. The cut at 2048 keys lies between rows 8 and 9.
TEST_P(PagedAttentionKernels, StrictRowsOverAPoolOfFP8HaveTheSameBitsInEveryBatch) {
  const OpContext strict = {.threads = 2, .determinism = Determinism::kStrict};
  constexpr int32_t kTokens = 20, kContext = 2040;
  std::vector<KeySpan> ones;
  for (int32_t i = 0; i < kTokens; ++i)
    ones.push_back({.q_off = i, .q_len = 1, .ctx_len = kContext + i, .phys0 = kContext + i});
  for (const int64_t dim : {64, 128, 256}) {
    SCOPED_TRACE(testing::Message() << "heads of " << dim);
    Problem problem = long_problem(kTokens, kContext);
    problem.dim = problem.v_dim = dim, problem.pool_type = DType::kE4M3;
    problem.k_scale = problem.v_scale = 0.013f;
    Request request(problem);
    const Request::Result prompt = request.run(ops(), strict, 0, kTokens);
    request.store_new_keys();
    const auto expect_rows = [&](const Request::Result& got, int64_t begin, int64_t end) {
      EXPECT_TRUE(bit_equal(got.out, copy_of(prompt.out.view().slice(begin, end)))) << begin << " to " << end;
      EXPECT_TRUE(bit_equal(got.lse, copy_of(prompt.lse.view().slice(begin, end)))) << begin << " to " << end;
    };
    expect_rows(request.run(ops(), strict, 0, kTokens, HeadGrouping::kGrouped, /*keys_given=*/false), 0, kTokens);
    expect_rows(request.run(ops(), strict, 0, 7), 0, 7);
    expect_rows(request.run(ops(), strict, 7, kTokens), 7, kTokens);
    expect_rows(request.run(ops(), strict, ones, 0, kTokens), 0, kTokens);
    for (const int64_t row : {0, 8, 9, 19}) expect_rows(request.run(ops(), strict, row, row + 1), row, row + 1);
  }
}

// Contexts of every length under one table of more than 8192 keys: whole rows, rows whose keys are shared out, a row
// that sees no key, and one whose new key lies apart from its context.
TEST_P(PagedAttentionKernels, StrictRequestsOfManyLengthsHaveTheSameBitsAloneAndTogether) {
  const OpContext strict = {.threads = 2, .determinism = Determinism::kStrict};
  constexpr int32_t kRequests = 40;
  std::vector<KeySpan> spans;
  for (int32_t i = 0; i < kRequests; ++i) {
    const int32_t context = i % 8 == 0 ? 8600 - 90 * i : i * i;
    spans.push_back({.q_off = i, .q_len = 1, .ctx_len = context, .phys0 = context});
  }
  spans[3] = {.q_off = 3, .q_len = 1, .kind = KeySpan::Kind::kNone};
  spans[5].phys0 += 70;
  for (const DType pool : {DType::kBF16, DType::kE4M3}) {
    Problem problem = long_problem(kRequests, 8600);
    problem.pool_type = pool;
    if (pool == DType::kE4M3) problem.k_scale = problem.v_scale = 0.013f;
    const Request request(problem);
    const Request::Result together = request.run(ops(), strict, spans, 0, kRequests);
    for (int32_t i = 0; i < kRequests; ++i) {
      SCOPED_TRACE(testing::Message() << "request " << i << ", pool of " << name_of(pool));
      KeySpan span = spans[static_cast<size_t>(i)];
      span.q_off = 0;
      const Request::Result alone = request.run(ops(), strict, std::span(&span, 1), i, i + 1);
      EXPECT_TRUE(bit_equal(alone.out, copy_of(together.out.view().slice(i, i + 1))));
      EXPECT_TRUE(bit_equal(alone.lse, copy_of(together.lse.view().slice(i, i + 1))));
    }
  }
}

// Few rows, whose keys a GPU's blocks may share out in clusters, and the same rows beside a prompt of many. Contexts
// end at tiles of keys and inside them, a row sees none, keys lie in a hole or apart from their context.
std::vector<KeySpan> few_row_spans() {
  std::vector<KeySpan> spans;
  int32_t tokens = 0;
  for (const int32_t context : {300, 0, 63, 64, 1, 127, 128, 1023, 1100, 4089, 4095, 700, 4200, 8190, 8600}) {
    const auto i = static_cast<int32_t>(spans.size());
    spans.push_back({.q_off = tokens, .q_len = i % 4 == 0 ? 5 : 1 + i % 3, .ctx_len = context, .phys0 = context});
    tokens += spans.back().q_len;
  }
  using Kind = KeySpan::Kind;
  spans[0].kind = spans[12].kind = Kind::kBlock, spans[0].block_size = spans[12].block_size = 4;
  spans[2].kind = spans[9].kind = Kind::kFull;
  spans[3].kind = Kind::kNone;
  spans[5].phys0 += 70, spans[14].phys0 += 70;
  spans[8].hole_begin = spans[13].hole_begin = 37, spans[8].hole_end = 301, spans[13].hole_end = 4500;
  return spans;
}

// How one layer's heads look to a test of bits. type: of the pool; of queries, too, but beside FP8.
struct HeadShape {
  int64_t dim, v_dim;
  DType type;
  int32_t window;
  float cap;
  DType queries = DType::kBF16;  // beside FP8
};

// Requests [first, second) of a list that are a batch of their own.
using BatchPart = std::pair<size_t, size_t>;

void PagedAttentionKernels::expect_strict_bits_beside_a_prompt(Problem problem, const HeadShape& shape,
                                                               const std::vector<KeySpan>& spans,
                                                               std::vector<BatchPart> parts) {
  constexpr int32_t kPrompt = 20;
  const OpContext strict = {.threads = 2, .determinism = Determinism::kStrict};
  const int32_t rows = spans.back().q_off + spans.back().q_len;
  std::vector<KeySpan> all = spans;
  all.push_back({.q_off = rows, .q_len = kPrompt, .ctx_len = 100, .phys0 = 100});
  problem.tokens = rows + kPrompt, problem.page_size = shape.dim == 64 || shape.dim == 72 ? 8 : 64;
  problem.dim = shape.dim, problem.v_dim = shape.v_dim, problem.window = shape.window, problem.logit_cap = shape.cap;
  const bool codes = shape.type == DType::kE4M3;
  problem.q_type = problem.new_type = codes ? shape.queries : shape.type, problem.pool_type = shape.type;
  if (codes) problem.k_scale = problem.v_scale = 0.013f;
  const Request request(problem);
  for (size_t i = 0; i < spans.size(); ++i) parts.emplace_back(i, i + 1);
  for (const bool keys_given : {true, false}) {
    const auto run = [&](std::span<const KeySpan> batch, int32_t begin, int32_t end) {
      return request.run(ops(), strict, batch, begin, end, HeadGrouping::kGrouped, keys_given);
    };
    const Request::Result want = run(all, 0, rows + kPrompt);
    for (const auto& [first, last] : parts) {
      SCOPED_TRACE(testing::Message() << "requests " << first << " to " << last << ", heads of " << shape.dim
                                      << (keys_given ? ", keys given" : ", keys from the pool"));
      std::vector<KeySpan> batch(spans.begin() + static_cast<int64_t>(first),
                                 spans.begin() + static_cast<int64_t>(last));
      const int32_t begin = batch.front().q_off, end = batch.back().q_off + batch.back().q_len;
      for (KeySpan& span : batch) span.q_off -= begin;
      const Request::Result got = run(batch, begin, end);
      EXPECT_TRUE(bit_equal(got.out, copy_of(want.out.view().slice(begin, end))));
      EXPECT_TRUE(bit_equal(got.lse, copy_of(want.lse.view().slice(begin, end))));
    }
  }
}

TEST_P(PagedAttentionKernels, StrictFewRowsHaveTheBitsOfTheSameRowsBesideAPrompt) {
  for (const HeadShape& shape :
       {HeadShape{128, 128, DType::kBF16, kNoWindow, 0}, HeadShape{64, 48, DType::kF16, kNoWindow, 0},
        HeadShape{256, 256, DType::kBF16, kNoWindow, 0}, HeadShape{96, 80, DType::kF16, 230, 0.5f},
        HeadShape{192, 256, DType::kF16, 4100, 0}, HeadShape{128, 128, DType::kE4M3, kNoWindow, 0},
        HeadShape{64, 48, DType::kE4M3, 230, 0}, HeadShape{200, 256, DType::kE4M3, 4100, 0, DType::kF16},
        HeadShape{128, 128, DType::kE4M3, kNoWindow, 0.5f}}) {
    expect_strict_bits_beside_a_prompt({.heads = 16, .kv_heads = 4, .context = 8700}, shape, few_row_spans(),
                                       {{0, 6}, {0, 12}, {12, 15}, {12, 14}, {7, 12}});
  }
}

// Requests of few rows over several groups of a GPU's keys, in one batch: whole rows, new keys apart from their
// context, a hole that ends in the second group, and windows that begin there.
TEST_P(PagedAttentionKernels, StrictRowsOfLongContextsHaveTheBitsOfTheSameRowsBesideAPrompt) {
  if (!GetParam().starts_with("cuda")) GTEST_SKIP() << "of a GPU's kernels";
  std::vector<KeySpan> spans;
  int32_t tokens = 0;
  for (const int32_t context : {8600, 4095, 8190, 8500}) {
    const int32_t rows = 1 + static_cast<int32_t>(spans.size()) % 2;
    spans.push_back({.q_off = tokens, .q_len = rows, .ctx_len = context, .phys0 = context});
    tokens += rows;
  }
  spans[2].phys0 += 70;
  spans[3].hole_begin = 37, spans[3].hole_end = 4500;
  for (const HeadShape& shape :
       {HeadShape{128, 128, DType::kBF16, kNoWindow, 0}, HeadShape{256, 256, DType::kF16, kNoWindow, 0.5f},
        HeadShape{128, 128, DType::kBF16, 1024, 0}, HeadShape{96, 80, DType::kF16, 4100, 0.5f},
        HeadShape{128, 96, DType::kE4M3, 1024, 0}, HeadShape{256, 256, DType::kE4M3, kNoWindow, 0}}) {
    expect_strict_bits_beside_a_prompt({.heads = 4, .kv_heads = 2, .context = 8700}, shape, spans, {{0, 4}, {2, 4}});
  }
}

// One request over more groups of keys than a GPU holds clusters for, which take several each: of a list of tiles that
// is one run, has a gap of more than a group, begins with a window, or has new keys apart.
TEST_P(PagedAttentionKernels, StrictRowsOverMoreGroupsThanClustersHaveTheBitsOfTheSameRowsBesideAPrompt) {
  if (!GetParam().starts_with("cuda")) GTEST_SKIP() << "of a GPU's kernels";
  std::vector<KeySpan> spans;
  int32_t tokens = 0;
  for (const int32_t rows : {1, 3, 2, 7}) {
    spans.push_back({.q_off = tokens, .q_len = rows, .ctx_len = 20600, .phys0 = 20600});
    tokens += rows;
  }
  spans[1].hole_begin = 4000, spans[1].hole_end = 8300;
  spans[2].phys0 += 70;
  for (const HeadShape& shape :
       {HeadShape{16, 16, DType::kBF16, kNoWindow, 0}, HeadShape{16, 16, DType::kF16, 15000, 0}}) {
    expect_strict_bits_beside_a_prompt({.heads = 44, .kv_heads = 22, .context = 20600}, shape, spans, {});
  }
}

// Blocks of up to `most` tokens, and half of them or less, over several fixed KV splits of a GPU.
std::vector<KeySpan> block_spans(int32_t most) {
  std::vector<KeySpan> spans;
  int32_t tokens = 0;
  for (const int32_t context : {8600, 8190, 8500, 8300, 4089, 700}) {
    const auto i = static_cast<int32_t>(spans.size());
    spans.push_back(
        {.q_off = tokens, .q_len = i < 3 ? most : most / 2 - 1 + i % 3, .ctx_len = context, .phys0 = context});
    tokens += spans.back().q_len;
  }
  using Kind = KeySpan::Kind;
  spans[0].kind = spans[4].kind = Kind::kBlock, spans[0].block_size = spans[4].block_size = 8;
  spans[2].kind = Kind::kFull;
  spans[3].hole_begin = 37, spans[3].hole_end = 4500;
  spans[1].phys0 += 70;
  return spans;
}

TEST_P(PagedAttentionKernels, StrictBlocksHaveTheBitsOfTheSameRowsBesideAPrompt) {
  if (!GetParam().starts_with("cuda")) GTEST_SKIP() << "of a GPU's kernels";
  for (const HeadShape& shape :
       {HeadShape{128, 128, DType::kBF16, kNoWindow, 0}, HeadShape{64, 48, DType::kF16, kNoWindow, 0},
        HeadShape{256, 200, DType::kBF16, kNoWindow, 0}, HeadShape{96, 80, DType::kF16, 4100, 0.5f}}) {
    for (const int32_t most : {8, 16}) {  // 12 to 32 rows of a KV head, which clusters process, and 28 to 64
      expect_strict_bits_beside_a_prompt({.heads = 8, .kv_heads = 2, .context = 8700}, shape, block_spans(most),
                                         {{0, 2}, {0, 4}, {2, 6}});
    }
  }
}

// As many requests of few rows as a GPU wants before each kv head of each of them is one warp's work; that a batch with
// a prompt is not. `longest`: of some contexts, where they are longer than the host knows.
std::vector<KeySpan> many_row_spans(int32_t longest) {
  std::vector<KeySpan> spans;
  int32_t tokens = 0;
  for (int32_t i = 0; i < 40; ++i) {
    const int32_t context = i % 9 == 4 && longest > 0 ? longest - 103 * i : i % 4 == 0 ? i / 4 % 6 * 64 : i * 97 % 370;
    spans.push_back({.q_off = tokens, .q_len = 1 + i * 7 % 10, .ctx_len = context, .phys0 = context});
    tokens += spans.back().q_len;
  }
  using Kind = KeySpan::Kind;
  for (const size_t i : {1, 8, 13, 22, 27}) spans[i].kind = Kind::kBlock, spans[i].block_size = 4;
  for (const size_t i : {2, 9, 31}) spans[i].kind = Kind::kFull;
  for (const size_t i : {3, 12}) spans[i].kind = Kind::kNone;
  for (const size_t i : {5, 13, 20}) spans[i].phys0 += 70;
  for (const size_t i : {6, 22, 39}) {
    if (spans[i].ctx_len > 60) spans[i].hole_begin = 37, spans[i].hole_end = spans[i].ctx_len - 20;
  }
  return spans;
}

TEST_P(PagedAttentionKernels, StrictRowsOfManyRequestsHaveTheBitsOfTheSameRowsBesideAPrompt) {
  if (!GetParam().starts_with("cuda")) GTEST_SKIP() << "of a GPU's kernels";
  const bool longer = GetParam() == testing_support::kRecordedShortSet;
  for (const HeadShape& shape :
       {HeadShape{128, 128, DType::kBF16, kNoWindow, 0}, HeadShape{72, 128, DType::kF16, kNoWindow, 0},
        HeadShape{128, 88, DType::kF16, 230, 0.5f}, HeadShape{128, 128, DType::kE4M3, 230, 0},
        HeadShape{256, 192, DType::kE4M3, kNoWindow, 0}}) {
    const int64_t kv_heads = longer ? 16 : 8;  // a recording knows the least number of requests alone
    expect_strict_bits_beside_a_prompt({.heads = 4 * kv_heads, .kv_heads = kv_heads, .context = longer ? 8700 : 700},
                                       shape, many_row_spans(longer ? 8600 : 0), {{0, 40}, {4, 38}, {5, 17}});
  }
}

// As many requests of few rows as a GPU wants before the warps of a block share the keys of each kv head of one: too
// many for clusters. Contexts end at tiles and pieces of keys and inside them; a hole and new keys apart from their
// context are for one warp alone.
std::vector<KeySpan> shared_row_spans(int32_t most) {
  std::vector<KeySpan> spans;
  int32_t tokens = 0;
  for (const int32_t context : {0,   1,   15,  16,  17,  63,  64,  112, 120, 127,  128,  129,  255,
                                256, 300, 330, 370, 384, 500, 640, 700, 960, 1000, 1024, 1100, 2000}) {
    const auto i = static_cast<int32_t>(spans.size());
    spans.push_back({.q_off = tokens, .q_len = 1 + i * 7 % most, .ctx_len = context, .phys0 = context});
    tokens += spans.back().q_len;
  }
  using Kind = KeySpan::Kind;
  for (const size_t i : {3, 8, 11, 19}) spans[i].kind = Kind::kBlock, spans[i].block_size = 4;
  for (const size_t i : {2, 9, 20}) spans[i].kind = Kind::kFull;
  for (const size_t i : {4, 12}) spans[i].kind = Kind::kNone;
  for (const size_t i : {6, 14}) spans[i].phys0 += 70;
  spans[17].hole_begin = 37, spans[17].hole_end = 301;
  return spans;
}

TEST_P(PagedAttentionKernels, StrictRowsOfSomeRequestsHaveTheBitsOfTheSameRowsBesideAPrompt) {
  if (!GetParam().starts_with("cuda")) GTEST_SKIP() << "of a GPU's kernels";
  for (const auto& [dim, most, type] :
       {std::tuple(128, 4, DType::kBF16), std::tuple(128, 8, DType::kF16), std::tuple(256, 4, DType::kBF16)}) {
    expect_strict_bits_beside_a_prompt({.heads = 32, .kv_heads = 8, .context = 2100},
                                       HeadShape{dim, dim, type, kNoWindow, 0}, shared_row_spans(most),
                                       {{0, 26}, {2, 24}, {9, 26}});
  }
}

// Contexts that are so long that a GPU cuts them beside requests of many rows, others that are not or have too many
// rows themselves, and a hole.
TEST_P(PagedAttentionKernels, RowsOfVeryLongContextsBesidePromptsMatchAndHaveTheSameBitsAlone) {
  if (!GetParam().starts_with("cuda")) GTEST_SKIP() << "of a GPU's kernels";
  constexpr int32_t kPrompts = 130, kPrompt = 9;  // enough tiles of rows for a device
  std::vector<KeySpan> spans = {{.q_len = 2, .ctx_len = 16390, .phys0 = 16390},
                                {.q_off = 2, .q_len = 1, .ctx_len = 300, .phys0 = 300},
                                {.q_off = 3, .q_len = 3, .ctx_len = 16500, .phys0 = 16500},
                                {.q_off = 6, .q_len = 1, .ctx_len = 17000, .phys0 = 17000},
                                {.q_off = 7 + kPrompts * kPrompt, .q_len = 1, .ctx_len = 18600, .phys0 = 18600}};
  spans[4].hole_begin = 5000, spans[4].hole_end = 7100;
  const std::vector<KeySpan> long_ones = spans;
  for (int32_t i = 0; i < kPrompts; ++i) spans.insert(spans.end() - 1, {.q_off = 7 + i * kPrompt, .q_len = kPrompt});
  for (const DType pool : {DType::kBF16, DType::kE4M3}) {
    SCOPED_TRACE(name_of(pool));
    Problem problem = long_problem(8 + kPrompts * kPrompt, 18600);
    problem.heads = 16, problem.kv_heads = 2, problem.pool_type = pool;
    const Request request(problem);
    const Request::Result want = request.run(reference::ops(), {}, spans, 0, problem.tokens);
    for (const Determinism determinism : {Determinism::kFast, Determinism::kStrict}) {
      const Request::Result got = request.run(ops(), {.determinism = determinism}, spans, 0, problem.tokens);
      EXPECT_TRUE(all_close(got.out, want.out, attention_tolerance(DType::kBF16)));
      EXPECT_TRUE(all_close(got.lse, want.lse, lse_tolerance(DType::kBF16)));
      if (determinism == Determinism::kFast) continue;
      for (KeySpan span : long_ones) {
        const int32_t begin = std::exchange(span.q_off, 0), end = begin + span.q_len;
        const Request::Result alone = request.run(ops(), {.determinism = determinism}, std::span(&span, 1), begin, end);
        EXPECT_TRUE(bit_equal(alone.out, copy_of(got.out.view().slice(begin, end)))) << begin;
        EXPECT_TRUE(bit_equal(alone.lse, copy_of(got.lse.view().slice(begin, end)))) << begin;
      }
    }
  }
}

// Enough requests for a device, whose keys are then cut in groups of their own, and those of the first requests finer
// where these are short; new keys follow their context or lie apart from it.
TEST_P(PagedAttentionKernels, RequestsOfManyLengthsMatch) {
  constexpr int32_t kRequests = 40;
  for (const auto& [pool, long_first] :
       {std::pair(DType::kBF16, true), std::pair(DType::kE4M3, true), std::pair(DType::kBF16, false)}) {
    Problem problem = long_problem(kRequests, 4600);
    problem.kv_heads = 4, problem.dim = 80, problem.v_dim = 96, problem.pool_type = pool;
    if (pool == DType::kE4M3) problem.k_scale = 0.9f, problem.v_scale = 1.1f;
    const Request request(problem);
    std::vector<KeySpan> spans;
    for (int32_t i = 0; i < kRequests; ++i) {
      const int32_t n = long_first ? i : kRequests - 1 - i, context = n % 8 == 0 ? 4600 - 70 * n : n * n;
      spans.push_back({.q_off = i, .q_len = 1, .ctx_len = context, .phys0 = context});
    }
    spans[3] = {.q_off = 3, .q_len = 1, .kind = KeySpan::Kind::kNone};
    spans[5].phys0 += 70;
    const Request::Result want = request.run(reference::ops(), {}, spans, 0, kRequests);
    const Request::Result got = request.run(ops(), {.threads = 2}, spans, 0, kRequests);
    EXPECT_TRUE(all_close(got.out, want.out, attention_tolerance(DType::kBF16))) << name_of(pool) << long_first;
    EXPECT_TRUE(all_close(got.lse, want.lse, lse_tolerance(DType::kBF16))) << name_of(pool) << long_first;
  }
}

TEST_P(PagedAttentionKernels, PromptsBeyondOneBlockMatch) {
  expect_matches_reference({.heads = 4, .kv_heads = 1, .tokens = 132, .context = 5, .logit_cap = 3});
  expect_matches_reference({.heads = 4,
                            .kv_heads = 1,
                            .tokens = 132,
                            .context = 40,
                            .q_type = DType::kBF16,
                            .new_type = DType::kBF16,
                            .pool_type = DType::kBF16,
                            .window = 90});
}

// Few rows and many, keys and values of one tile and of several, pages smaller and larger than a tile.
TEST_P(PagedAttentionKernels, EveryHeadSizeOverAPoolOfFP8Matches) {
  for (const auto& [dim, v_dim] : {std::pair(64, 64), std::pair(80, 40), std::pair(128, 96), std::pair(200, 256)}) {
    for (const auto& [tokens, page_size] : {std::pair(3, 8), std::pair(33, 16), std::pair(34, 256)}) {
      const DType type = page_size == 16 ? DType::kF16 : DType::kBF16;
      Problem c = {.heads = 4,
                   .kv_heads = 1,
                   .dim = dim,
                   .v_dim = v_dim,
                   .page_size = page_size,
                   .tokens = tokens,
                   .context = 150,
                   .q_type = type,
                   .new_type = type,
                   .pool_type = DType::kE4M3,
                   .k_scale = 0.6f,
                   .v_scale = 1.2f};
      if (page_size == 256) c.logit_cap = 2, c.window = 100;
      expect_matches_reference(c);
    }
  }
}

// One token, a few and many; one tile of keys and KV splits; every page size.
TEST_P(PagedAttentionKernels, EveryHeadAndPageSizeOverAPoolOfInt8Matches) {
  if (!takes_int8()) GTEST_SKIP() << "int8 is a CPU's";
  const auto expect_match = [&](int64_t dim, int64_t v_dim, int64_t page_size, int64_t tokens, int64_t context) {
    for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
      Problem c = {.heads = 6,
                   .dim = dim,
                   .v_dim = v_dim,
                   .page_size = page_size,
                   .tokens = tokens,
                   .context = context,
                   .q_type = type,
                   .new_type = type,
                   .pool_type = DType::kI8};
      expect_matches_reference(c);
      c.logit_cap = 2, c.window = 100;
      expect_matches_reference(c);
    }
  };
  using Heads = std::pair<int64_t, int64_t>;
  for (const auto& [dim, v_dim] : {Heads(1, 3), Heads(64, 64), Heads(80, 40), Heads(128, 96), Heads(200, 256)}) {
    for (const int64_t tokens : {1, 3, 33}) expect_match(dim, v_dim, 16, tokens, 150);
  }
  for (const int64_t page_size : {1, 16, 32, 64, 128, 256}) {
    expect_match(64, 64, page_size, 2, 331);
    expect_match(16, 16, page_size, 1, 4500);
  }
}

// Every number of rows that reads keys in place, and one more.
TEST_P(PagedAttentionKernels, FewRowsOverAPoolOfInt8Match) {
  if (!takes_int8()) GTEST_SKIP() << "int8 is a CPU's";
  for (int64_t rows = 1; rows <= 9; ++rows) {
    for (const auto& [dim, v_dim] : {std::pair(32, 32), std::pair(96, 160), std::pair(128, 64)}) {
      for (const DType type : {DType::kF32, DType::kBF16}) {
        Problem c = {.heads = rows,
                     .kv_heads = 1,
                     .dim = dim,
                     .v_dim = v_dim,
                     .context = 331,
                     .q_type = type,
                     .new_type = type,
                     .pool_type = DType::kI8};
        expect_matches_reference(c);
        c.logit_cap = 0.5f, c.window = 230, c.page_size = 1;
        expect_matches_reference(c);
      }
    }
  }
}

// A row that holds an infinity or NaN has the scale NaN: whoever sees it is NaN, nobody else. Then a first token, which
// sees nothing besides its own key.
TEST_P(PagedAttentionKernels, InfinitiesAndNaNsInAPoolOfInt8StayVisible) {
  if (!takes_int8()) GTEST_SKIP() << "int8 is a CPU's";
  constexpr int64_t kTokens = 9, kContext = 70, kDim = 32;
  for (const DType type : {DType::kF32, DType::kBF16}) {
    const Problem problem = {.tokens = kTokens,
                             .context = kContext,
                             .q_type = type,
                             .new_type = type,
                             .pool_type = DType::kI8,
                             .window = 12};
    Request request(problem);
    request.spoil_key_scale(kContext - 10, 0), request.spoil_value_scale(kContext - 8, 1);  // row t sees from t - 11 on
    request.set_new_key(7, 1, 5, -std::numeric_limits<double>::infinity());
    const auto spoiled = [](int64_t token, int64_t kv_head) {
      return kv_head == 0 ? token <= 1 : token <= 3 || token >= 7;
    };
    for (const Determinism determinism : {Determinism::kFast, Determinism::kStrict}) {
      const Tensor out = request.run(ops(), {.threads = 2, .determinism = determinism}, 0, kTokens).out;
      for (int64_t i = 0; i < out.numel(); ++i) {
        const int64_t token = i / kDim / problem.heads, head = i / kDim % problem.heads;
        EXPECT_EQ(std::isnan(element_as_double(out, i)), spoiled(token, head / 2)) << token << ", head " << head;
      }
    }
    Request first({.tokens = 1, .q_type = type, .new_type = type, .pool_type = DType::kI8});
    first.set_new_key(0, 0, 0, std::numeric_limits<double>::quiet_NaN());
    const Tensor out = first.run(ops(), {}, 0, 1).out;
    for (int64_t i = 0; i < out.numel(); ++i) EXPECT_EQ(std::isnan(element_as_double(out, i)), i / kDim < 2) << i;
  }
}

TEST_P(PagedAttentionKernels, ThreadsDoNotChangeTheBits) {
  for (const int64_t tokens : {1, 200}) {
    for (const DType pool : {DType::kF32, DType::kI8}) {
      if (pool == DType::kI8 && !takes_int8()) continue;
      const Request request({.heads = 6, .tokens = tokens, .context = 2300, .pool_type = pool});
      const Request::Result one = request.run(ops(), {.threads = 1}, 0, tokens);
      for (const int threads : {2, 3, 16}) {
        EXPECT_TRUE(bit_equal(request.run(ops(), {.threads = threads}, 0, tokens).out, one.out));
      }
    }
  }
}

TEST_P(PagedAttentionKernels, StrictPromptSplitAnywhereHasTheSameBits) {
  const OpContext strict = {.threads = 2, .determinism = Determinism::kStrict};
  using Types = std::pair<DType, DType>;  // of q and new keys, and of the pool
  for (const auto& [type, pool] :
       {Types(DType::kF32, DType::kF32), Types(DType::kBF16, DType::kBF16), Types(DType::kF32, DType::kE4M3),
        Types(DType::kBF16, DType::kE4M3), Types(DType::kF32, DType::kI8), Types(DType::kBF16, DType::kI8)}) {
    if (pool == DType::kI8 && !takes_int8()) continue;
    const float scale = pool == DType::kE4M3 ? 0.013f : 1.0f;
    Request request({.heads = 10,
                     .tokens = 150,
                     .context = 33,
                     .q_type = type,
                     .new_type = type,
                     .pool_type = pool,
                     .k_scale = scale,
                     .v_scale = scale});
    const Request::Result whole = request.run(ops(), strict, 0, 150);
    request.store_new_keys();
    for (const int64_t size : {1, 7, 64, 149}) {
      for (int64_t begin = 0; begin < 150; begin += size) {
        const int64_t end = std::min<int64_t>(150, begin + size);
        const Request::Result part = request.run(ops(), strict, begin, end);
        EXPECT_TRUE(bit_equal(part.out, copy_of(whole.out.view().slice(begin, end)))) << begin << " to " << end;
        EXPECT_TRUE(bit_equal(part.lse, copy_of(whole.lse.view().slice(begin, end))));
      }
    }
    const auto from_pool = request.run(ops(), strict, 0, 150, HeadGrouping::kPerHead, /*keys_given=*/false);
    EXPECT_TRUE(bit_equal(from_pool.out, whole.out)) << "new keys read from the pool, head by head";
  }
}

// Pages that no row sees need not be read: what an earlier call left in their place must not matter, NaN or not.
TEST_P(PagedAttentionKernels, StrictBitsDoNotDependOnTheCallBefore) {
  const OpContext strict = {.threads = 2, .determinism = Determinism::kStrict};
  constexpr int64_t kTokens = 150;
  using Kind = std::tuple<int64_t, DType, float>;  // head size, what the pool holds, scale of keys and values
  for (const auto& [dim, pool, scale] : {Kind(32, DType::kBF16, 1.0f), Kind(128, DType::kBF16, 1.0f),
                                         Kind(32, DType::kE4M3, 0.013f), Kind(128, DType::kE4M3, 0.013f)}) {
    SCOPED_TRACE(testing::Message() << "heads of " << dim << ", pool of " << name_of(pool));
    const Problem problem = {.heads = 10,
                             .dim = dim,
                             .v_dim = dim,
                             .tokens = kTokens,
                             .context = 33,
                             .q_type = DType::kBF16,
                             .new_type = DType::kBF16,
                             .pool_type = pool,
                             .k_scale = scale,
                             .v_scale = scale};
    Request request(problem), spoiled(problem);
    const Request::Result want = request.run(ops(), strict, 0, kTokens);
    spoiled.spoil_from(0);
    request.store_new_keys();
    spoiled.store_new_keys();
    static_cast<void>(spoiled.run(ops(), strict, 0, kTokens, HeadGrouping::kGrouped, /*keys_given=*/false));
    const auto got = request.run(ops(), strict, 0, kTokens, HeadGrouping::kGrouped, /*keys_given=*/false);
    EXPECT_TRUE(bit_equal(got.out, want.out));
    EXPECT_TRUE(bit_equal(got.lse, want.lse));
  }
}

// A GPU's block of 128 rows ends where they begin, and the tile of 128 keys that it ends in holds them too.
TEST_P(PagedAttentionKernels, LaterPagesOfNaNReachNoRowBeforeThem) {
  constexpr int64_t kTokens = 40, kSpoiled = 16;  // from the page of position 112 on
  for (const DType pool : {DType::kBF16, DType::kE4M3}) {
    for (const int64_t dim : {64, 128, 256}) {
      SCOPED_TRACE(testing::Message() << "pool of " << name_of(pool) << ", heads of " << dim);
      Request request({.heads = 8,
                       .kv_heads = 1,
                       .dim = dim,
                       .v_dim = dim,
                       .tokens = kTokens,
                       .context = 96,
                       .q_type = DType::kBF16,
                       .new_type = DType::kBF16,
                       .pool_type = pool});
      const Request::Result want = request.run(reference::ops(), {}, 0, kSpoiled);
      request.spoil_from(kSpoiled);
      request.store_new_keys();
      for (const Determinism determinism : {Determinism::kFast, Determinism::kStrict}) {
        const auto got = request.run(ops(), {.threads = 2, .determinism = determinism}, 0, kTokens,
                                     HeadGrouping::kGrouped, /*keys_given=*/false);
        EXPECT_TRUE(all_close(copy_of(got.out.view().slice(0, kSpoiled)), want.out, attention_tolerance(DType::kBF16)));
        EXPECT_TRUE(all_close(copy_of(got.lse.view().slice(0, kSpoiled)), want.lse, lse_tolerance(DType::kBF16)));
      }
    }
  }
}

// 0 times NaN is NaN: a masked key's probability of 0 must not meet its value.
TEST_P(PagedAttentionKernels, AValueThatIsNaNReachesNoOtherRowAndNoOtherElement) {
  constexpr int64_t kTokens = 150, kSpoiled = 77, kElement = 5;
  using Types = std::pair<DType, DType>;  // of q and new keys, and of the pool
  for (const auto& [type, pool] :
       {Types(DType::kF32, DType::kF32), Types(DType::kBF16, DType::kBF16), Types(DType::kBF16, DType::kE4M3)}) {
    Request request(
        {.heads = 10, .tokens = kTokens, .context = 33, .q_type = type, .new_type = type, .pool_type = pool});
    const Request::Result clean = request.run(ops(), {.threads = 2}, 0, kTokens);
    request.set_new_value(kSpoiled, kElement, std::numeric_limits<double>::quiet_NaN());
    const Request::Result got = request.run(ops(), {.threads = 2}, 0, kTokens);
    for (int64_t t = 0; t < kSpoiled; ++t) {
      for (int64_t h = 0; h < 10; ++h) {
        const TensorView row = got.out.view().select(t).select(h), before = clean.out.view().select(t).select(h);
        EXPECT_TRUE(bit_equal(copy_of(row.slice(0, kElement)), copy_of(before.slice(0, kElement))));
        EXPECT_TRUE(bit_equal(copy_of(row.slice(kElement + 1, 32)), copy_of(before.slice(kElement + 1, 32))));
        // A GPU does this element again by another kernel: it may round to the next bfloat16.
        const double want = element_as_double(before, kElement),
                     step = GetParam().starts_with("cuda") ? std::abs(want) / 128 : 0;
        EXPECT_NEAR(element_as_double(row, kElement), want, step);
      }
    }
    EXPECT_TRUE(bit_equal(got.lse, clean.lse));
    for (int64_t h = 0; h < 10; ++h) {
      for (int64_t t = kSpoiled; t < kTokens; ++t) {
        const TensorView row = got.out.view().select(t).select(h), before = clean.out.view().select(t).select(h);
        EXPECT_TRUE(std::isnan(element_as_double(row, kElement))) << "row " << t << " sees it";
        EXPECT_TRUE(bit_equal(copy_of(row.slice(kElement + 1, 32)), copy_of(before.slice(kElement + 1, 32))));
      }
    }
  }
}

// Few rows over cached keys, all of which they see: a kernel may take columns of values in pairs.
TEST_P(PagedAttentionKernels, AnInfiniteCachedValueReachesNoOtherElement) {
  for (const int64_t heads : {4, 12}) {
    for (const int64_t element : {6, 7}) {
      SCOPED_TRACE(testing::Message() << heads << " heads, element " << element);
      Request request({.heads = heads,
                       .kv_heads = 1,
                       .dim = 64,
                       .v_dim = 64,
                       .context = 331,
                       .q_type = DType::kBF16,
                       .new_type = DType::kBF16,
                       .pool_type = DType::kBF16});
      request.set_cached_value(100, element, std::numeric_limits<double>::infinity());
      const Request::Result want = request.run(reference::ops(), {}, 0, 1);
      for (const Determinism determinism : {Determinism::kFast, Determinism::kStrict}) {
        const Request::Result got = request.run(ops(), {.threads = 2, .determinism = determinism}, 0, 1);
        EXPECT_TRUE(all_close(got.out, want.out, attention_tolerance(DType::kBF16)));
        EXPECT_TRUE(all_close(got.lse, want.lse, lse_tolerance(DType::kBF16)));
      }
    }
  }
}

// Threads share out heads: what one has may not change how another is summed.
TEST_P(PagedAttentionKernels, AnInfiniteCachedValueLeavesTheBitsToTheProblem) {
  Request request({.heads = 32,
                   .kv_heads = 8,
                   .dim = 64,
                   .v_dim = 64,
                   .context = 331,
                   .q_type = DType::kBF16,
                   .new_type = DType::kBF16,
                   .pool_type = DType::kBF16});
  request.set_cached_value_of(0, 100, 6, std::numeric_limits<double>::infinity());
  const Request::Result want = request.run(ops(), {.threads = 1}, 0, 1);
  for (const int threads : {2, 3, 8}) {
    const Request::Result got = request.run(ops(), {.threads = threads}, 0, 1);
    EXPECT_TRUE(bit_equal(got.out, want.out)) << threads << " threads";
    EXPECT_TRUE(bit_equal(got.lse, want.lse)) << threads << " threads";
  }
}

// Every float that is a code, halfway between two, beside that, or beyond them, by a row of 67: vectors and a rest.
TEST_P(PagedAttentionKernels, W33_StoringInFP8RoundsAsTheReferenceDoes) {
  std::vector<float> values = {1e30f, -1e30f, 1e-30f, std::numeric_limits<float>::infinity(),
                               std::numeric_limits<float>::quiet_NaN()};
  for (int code = 0; code < 256; ++code) {
    E4M3 x, next;
    x.bits = static_cast<uint8_t>(code), next.bits = static_cast<uint8_t>(code ^ 1);
    const float value = static_cast<float>(x), middle = (value + static_cast<float>(next)) / 2;
    values.insert(values.end(), {value, middle, std::nextafter(middle, 1e9f), std::nextafter(middle, -1e9f)});
  }
  constexpr int64_t kDim = 67;
  const auto tokens = static_cast<int64_t>(values.size()) / kDim + 1;
  values.resize(static_cast<size_t>(tokens * kDim), 3);
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    const Tensor k(type, {tokens, 1, kDim}), slots(DType::kI64, {tokens});
    for (int64_t i = 0; i < k.numel(); ++i) set_element(k, i, static_cast<double>(values[static_cast<size_t>(i)]));
    for (int64_t t = 0; t < tokens; ++t) set_element(slots, t, t == 3 ? -1 : static_cast<double>(t));
    const auto stored = [&](const OpSet& set, float scale) {
      const Tensor pool(DType::kE4M3, {tokens, 1, 1, kDim}), other(DType::kE4M3, {tokens, 1, 1, kDim});
      for (const Tensor* side : {&pool, &other}) poison(*side);
      set.store_kv({.k = k, .v = k, .slots = slots, .kv = {.k = pool, .v = other, .k_scale = scale, .v_scale = 1}}, {});
      return copy_of(pool);
    };
    for (const float scale : {1.0f, 0.7f, 3e-3f}) {
      EXPECT_TRUE(bit_equal(stored(ops(), scale), stored(reference::ops(), scale))) << name_of(type) << " " << scale;
    }
  }
}

// Rows to store in a pool of int8 of two pages of 16, of 67 numbers: vectors and a rest. Head 0 has ties, the least and
// the largest rows that have codes, and rows without.
struct Int8Rows {
  static constexpr int64_t kTokens = 12, kHeads = 2, kDim = 67, kPage = 16, kUnsaved = 3;
  Tensor k, slots = Tensor(DType::kI64, {kTokens});

  explicit Int8Rows(DType type) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    Random random(5);
    k = random_tensor(random, type, {kTokens, kHeads, kDim});
    const auto scale_row = [&](int64_t token, double by) {
      for (int64_t d = 0; d < kDim; ++d) set_element(row(token, 0), d, by * element_as_double(row(token, 0), d));
    };
    for (int64_t d = 0; d < kDim; ++d) set_element(row(0, 0), d, d == 9 ? -127 : static_cast<double>(d) - 20.5);
    scale_row(1, 0), scale_row(2, 1e-37), scale_row(4, 0x1p-98), scale_row(5, 1e4);
    if (type != DType::kF16) scale_row(6, 1e37);
    set_element(row(7, 0), 66, kInfinity), set_element(row(8, 0), 2, -kInfinity), set_element(row(9, 0), 64, NAN);
    for (int64_t t = 0; t < kTokens; ++t)
      set_element(slots, t, static_cast<double>(t == kUnsaved ? kDoNotStore : slot_of(t)));
  }
  static int64_t slot_of(int64_t token) { return token * 5 % (2 * kPage); }
  TensorView row(int64_t token, int64_t head) const { return k.view().select(token).select(head); }
};

// The rows as keys and as values of an int8 pool.
struct Int8Stored {
  using R = Int8Rows;
  Tensor k = Tensor::zeros(DType::kI8, {2, R::kHeads, R::kPage, R::kDim}), v = Tensor::zeros(DType::kI8, k.shape()),
         k_scales = Tensor::zeros(DType::kF32, {2, R::kHeads, R::kPage}),
         v_scales = Tensor::zeros(DType::kF32, k_scales.shape());

  Int8Stored(const OpSet& ops, const Int8Rows& rows) {
    const KVLayerView kv = {.k = k, .v = v, .k_token_scales = k_scales, .v_token_scales = v_scales};
    ops.store_kv({.k = rows.k, .v = rows.k, .slots = rows.slots, .kv = kv}, {});
  }
  TensorView codes(int64_t slot, int64_t head) const {
    return k.view().select(slot / R::kPage).select(head).select(slot % R::kPage);
  }
  double scale(int64_t slot, int64_t head) const {
    return element_as_double(k_scales.view().select(slot / R::kPage).select(head), slot % R::kPage);
  }
};

void expect_int8_formula(const TensorView& row, const TensorView& codes, double scale, bool stored) {
  float amax = 0;
  bool finite = true;
  for (int64_t d = 0; d < row.dim(0); ++d) {
    const auto x = static_cast<float>(std::abs(element_as_double(row, d)));
    finite = finite && std::isfinite(x), amax = std::max(amax, x);
  }
  const bool has_codes = stored && finite && amax >= 0x1p-100f;
  const float expected = has_codes ? amax / 127 : 0.0f;
  EXPECT_TRUE(finite ? scale == static_cast<double>(expected) : std::isnan(scale)) << scale;
  for (int64_t d = 0; d < row.dim(0); ++d) {
    const double code = element_as_double(codes, d), x = element_as_double(row, d);
    EXPECT_LE(std::abs(code), has_codes ? 127 : 0);
    if (has_codes) {
      EXPECT_LE(std::abs(x - code * scale), scale * (0.5 + 1e-4));
    }
  }
}

TEST_P(PagedAttentionKernels, StoringInInt8FollowsTheFormula) {
  if (!takes_int8()) GTEST_SKIP() << "int8 is a CPU's";
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    const Int8Rows rows(type);
    const Int8Stored got(ops(), rows), want(reference::ops(), rows);
    EXPECT_TRUE(bit_equal(got.k, want.k));
    EXPECT_TRUE(bit_equal(got.k_scales, want.k_scales));
    EXPECT_TRUE(bit_equal(got.v, got.k));
    EXPECT_TRUE(bit_equal(got.v_scales, got.k_scales));
    for (int64_t t = 0; t < Int8Rows::kTokens; ++t) {
      for (int64_t h = 0; h < Int8Rows::kHeads; ++h) {
        SCOPED_TRACE(testing::Message() << name_of(type) << ", token " << t << ", head " << h);
        const int64_t slot = Int8Rows::slot_of(t);
        expect_int8_formula(rows.row(t, h), got.codes(slot, h), got.scale(slot, h), t != Int8Rows::kUnsaved);
      }
    }
    for (const auto& [d, code] : {std::pair(0, -20), std::pair(1, -20), std::pair(2, -18), std::pair(21, 0)})
      EXPECT_EQ(element_as_double(got.codes(0, 0), d), code) << "a tie: the scale is 1";
  }
}

TEST_P(PagedAttentionKernels, RefusesAPageTableOfAnotherType) {
  if (GetParam().starts_with("cuda")) GTEST_SKIP() << "whose tables lie on a device";
  const KVPool pool({.groups = {{{1, 16, 16}, {0}}}, .num_pages = 1, .page_size = 16, .dtype = DType::kF32});
  const Tensor q = Tensor::zeros(DType::kF32, {1, 1, 16}), out(DType::kF32, {1, 1, 16});
  const KeySpan span{.ctx_len = 4, .phys0 = 4, .kind = KeySpan::Kind::kNone};
  const auto refusal = [&](DType type, const Shape& shape) {
    const Tensor table = Tensor::zeros(type, shape);
    return testing_support::refusal_of([&] {
      ops().paged_attention(
          {.q = q, .kv = pool.layer(0), .spans = std::span(&span, 1), .page_table = table, .out = out}, {});
    });
  };
  EXPECT_EQ(refusal(DType::kI32, {1, 1}).sentence, "");
  EXPECT_EQ(refusal(DType::kI64, {1, 1}).sentence, "paged_attention: page_table: dtype is int64, expected int32");
  EXPECT_EQ(refusal(DType::kI32, {1}).sentence, "paged_attention: page_table: shape [1] has 1 dimensions, expected 2");
}

TEST_P(PagedAttentionKernels, RefusesScalesOfAPoolOfFloats) {
  const Request request({.tokens = 1, .context = 3, .k_scale = 2});
  EXPECT_THROW(request.run(ops(), {}, 0, 1), Error);
  const Request zero({.tokens = 1, .context = 3, .pool_type = DType::kE4M3, .v_scale = 0});
  EXPECT_THROW(zero.run(ops(), {}, 0, 1), Error);
}

TEST_P(PagedAttentionKernels, RefusesAPoolOfInt8WithoutItsScales) {
  const Tensor k = Tensor::zeros(DType::kF32, {1, 1, 16}), slots = Tensor::zeros(DType::kI64, {1});
  const Tensor scales = Tensor::zeros(DType::kF32, {2, 1, 16}), short_ones = Tensor::zeros(DType::kF32, {1, 1, 16});
  const auto refusal = [&](DType pool, const TensorView& k_scales, const TensorView& v_scales) {
    const Tensor side = Tensor::zeros(pool, {2, 1, 16, 16});
    const KVLayerView kv = {.k = side, .v = side, .k_token_scales = k_scales, .v_token_scales = v_scales};
    return testing_support::refusal_of([&] { ops().store_kv({.k = k, .v = k, .slots = slots, .kv = kv}, {}); })
        .sentence;
  };
  EXPECT_EQ(refusal(DType::kI8, {}, scales), "store_kv: the pool of int8 is given no token scales, expected some");
  EXPECT_EQ(refusal(DType::kF32, {}, scales), "store_kv: the pool of float32 is given token scales, expected none");
  EXPECT_EQ(refusal(DType::kI8, scales, short_ones),
            "store_kv: token scales: shape is [1, 1, 16], expected [2, 1, 16]");
  EXPECT_EQ(refusal(DType::kI8, scales, scales),
            takes_int8() ? "" : "store_kv: keys and values in int8 run on a CPU alone");
}

TEST_P(PagedAttentionKernels, EmptyRequestIsLeftAlone) {
  const Request request({.tokens = 3, .context = 2100});
  EXPECT_NO_THROW(request.run(ops(), {.threads = 2}, 1, 1));
  EXPECT_NO_THROW(request.run(ops(), {.determinism = Determinism::kStrict}, 3, 3));
}

HR_INSTANTIATE_KERNEL_SETS(PagedAttentionKernels);
HR_INSTANTIATE_RECORDED_SET(PagedAttentionKernels);
INSTANTIATE_TEST_SUITE_P(RecordedShort, PagedAttentionKernels,
                         testing::Values(std::string(testing_support::kRecordedShortSet)),
                         [](const auto& set) { return set.param; });

}  // namespace
}  // namespace headrace
