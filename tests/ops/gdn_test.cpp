// Every CPU kernel set's gated_delta_rule against the oracle, element by element.
#include <cmath>

#include "headrace/ops/reference/reference_ops.h"
#include "ops/gdn_problem.h"
#include "ops/kernel_sets.h"
#include "support/all_close.h"
#include "support/tolerances.h"

namespace headrace {
namespace {

using testing_support::all_close;
using testing_support::bit_equal;
using testing_support::gdn_tolerance;
using testing_support::GDNCase;
using testing_support::GDNProblem;
using testing_support::KernelSetTest;

double relative_rms(const TensorView& got, const TensorView& want) {
  double error = 0, size = 0;
  for (int64_t i = 0; i < want.numel(); ++i) {
    const double w = element_as_double(want, i), e = element_as_double(got, i) - w;
    error += e * e, size += w * w;
  }
  return std::sqrt(error / size);
}

class GDNKernels : public KernelSetTest {
 protected:
  // Outputs and written slots equal the oracle's; all other slots keep their bits.
  void expect_matches_reference(const GDNCase& c, const std::vector<StateSnapshot>& snapshots = {}) {
    GDNProblem want(c), got(c);
    want.snapshots = got.snapshots = snapshots;
    want.run(reference::ops());
    got.run(ops());  // on one thread: other tests hold that threads change no bit, and waiting ones cost time
    EXPECT_TRUE(all_close(got.out(), want.out(), gdn_tolerance(c.out, c.in)));
    for (int64_t slot = 0; slot < want.state().dim(0); ++slot) {
      if (std::isnan(element_as_double(want.slot(slot), 0))) {
        EXPECT_TRUE(bit_equal(got.slot(slot), want.slot(slot))) << "slot " << slot;
      } else {
        EXPECT_TRUE(all_close(got.slot(slot), want.slot(slot), gdn_tolerance(DType::kF32, c.in))) << "slot " << slot;
      }
    }
  }
};

TEST_P(GDNKernels, MatchesReferenceAtEveryLength) {
  for (int32_t len = 1; len <= 130; ++len) {
    SCOPED_TRACE(len);
    expect_matches_reference({.k_heads = 1, .group = 1 + len % 4, .lens = {len}, .seed = static_cast<uint64_t>(len)});
  }
}

TEST_P(GDNKernels, MatchesReferenceAtEveryDecayAndGroup) {
  for (const double mean_g : {-0.001, -0.05, -0.5, -1.0, -2.0, -5.0}) {
    for (const int32_t group : {1, 2, 3, 4}) {
      SCOPED_TRACE(testing::Message() << "mean g " << mean_g << ", group " << group);
      expect_matches_reference({.group = group, .lens = {130}, .mean_g = mean_g});
    }
  }
}

TEST_P(GDNKernels, MatchesReferenceAtEveryHeadSize) {
  const std::vector<std::pair<int32_t, int32_t>> sizes = {{1, 1},   {2, 3},   {16, 24},   {24, 16},
                                                          {40, 65}, {64, 64}, {128, 128}, {130, 36}};
  for (const auto& [dk, dv] : sizes) {
    SCOPED_TRACE(testing::Message() << "dk " << dk << ", dv " << dv);
    expect_matches_reference({.dk = dk, .dv = dv, .lens = {1, 67}});
  }
}

// The largest heads that every set takes.
TEST_P(GDNKernels, HeadsOf256MatchReferenceAndStrictlyHaveTheSameBitsInAnySplit) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    SCOPED_TRACE(name_of(type));
    const GDNCase c = {.k_heads = 1, .group = 1, .dk = 256, .dv = 256, .lens = {1, 67}, .in = type, .out = type};
    const int32_t spare = GDNProblem(c).first_spare();
    expect_matches_reference(c, {{.request = 1, .num_tokens = 64, .slot = spare}});
    const OpContext strict = {.threads = 2, .determinism = Determinism::kStrict};
    GDNProblem whole(c), split(c);
    whole.run(ops(), strict);
    split.run_split(ops(), {33, 1, 20}, strict);
    EXPECT_TRUE(bit_equal(split.out(), whole.out()));
    for (const int64_t slot : {2, 4}) EXPECT_TRUE(bit_equal(split.slot(slot), whole.slot(slot))) << slot;
  }
}

TEST_P(GDNKernels, MatchesReferenceForEveryDType) {
  for (const DType in : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const DType out : {DType::kF32, DType::kBF16, DType::kF16}) {
      SCOPED_TRACE(testing::Message() << name_of(in) << " to " << name_of(out));
      expect_matches_reference({.lens = {1, 100}, .in = in, .out = out});
    }
  }
}

TEST_P(GDNKernels, Bfloat16IsWithinFiveThousandthsOfTheOracle) {
  for (const double mean_g : {-0.02, -0.5}) {
    const GDNCase c = {.dk = 128, .dv = 128, .lens = {200, 64}, .mean_g = mean_g, .key_spread = 1, .in = DType::kBF16};
    GDNProblem want(c), got(c);
    want.run(reference::ops());
    got.run(ops(), {.threads = 2});
    EXPECT_LT(relative_rms(got.out(), want.out()), 5e-3);
    for (const int64_t slot : {2, 4}) EXPECT_LT(relative_rms(got.slot(slot), want.slot(slot)), 5e-3);
    GDNProblem again(c);
    again.run(ops(), {.threads = 1});
    EXPECT_TRUE(bit_equal(again.out(), got.out()));
  }
}

TEST_P(GDNKernels, Bfloat16SnapshotsAndSplitsMatchReference) {
  const GDNCase c = {.dk = 64, .dv = 32, .lens = {150, 20}, .in = DType::kBF16, .out = DType::kBF16};
  const int32_t spare = GDNProblem(c).first_spare();
  expect_matches_reference(c, {{.request = 0, .num_tokens = 64, .slot = spare},
                               {.request = 0, .num_tokens = 101, .slot = spare + 1},
                               {.request = 1, .num_tokens = 20, .slot = spare + 2}});
}

// The head size of published models, for which there are kernels of their own.
GDNCase heads_of_128(const std::vector<int32_t>& lens, double mean_g = -0.1) {
  return {.k_heads = 1, .dk = 128, .dv = 128, .lens = lens, .mean_g = mean_g, .in = DType::kBF16, .out = DType::kBF16};
}

TEST_P(GDNKernels, Bfloat16HeadsOf128MatchReferenceAtEveryTail) {
  for (const int32_t len : {1, 4, 5, 15, 16, 17, 48, 63, 64, 65, 127, 128, 129, 200, 321}) {
    SCOPED_TRACE(len);
    expect_matches_reference(heads_of_128({len}));
  }
}

TEST_P(GDNKernels, Bfloat16HeadsOf128MatchReferenceAtEveryDecay) {
  for (const double mean_g : {-0.001, -0.05, -0.5, -1.0, -5.0, -20.0}) {
    SCOPED_TRACE(mean_g);
    expect_matches_reference(heads_of_128({150, 70}, mean_g));
  }
}

TEST_P(GDNKernels, Bfloat16HeadsOf128RaggedBatchMatchesReference) {
  GDNCase c = heads_of_128({1, 0, 129, 3, 64, 16, 1, 15, 65});
  c.k_heads = 2;
  expect_matches_reference(c);
  c.group = 1;
  expect_matches_reference(c);
}

// More heads than a device has places for at once.
TEST_P(GDNKernels, Bfloat16ManyHeadsOf128MatchReference) {
  GDNCase c = heads_of_128({70, 1, 66, 9, 65});
  c.k_heads = 8, c.group = 4;
  expect_matches_reference(c);
}

TEST_P(GDNKernels, Bfloat16HeadsOf128SnapshotsHoldTheStateAfterTheirTokens) {
  const int32_t spare = GDNProblem(heads_of_128({150, 90})).first_spare();
  expect_matches_reference(heads_of_128({150, 90}), {{.request = 0, .num_tokens = 64, .slot = spare},
                                                     {.request = 0, .num_tokens = 101, .slot = spare + 1},
                                                     {.request = 0, .num_tokens = 150, .slot = spare + 2},
                                                     {.request = 1, .num_tokens = 1, .slot = spare + 3}});
}

// On tensor cores the state meets keys and queries in bfloat16: 2^-9 each time, and the sum of the chunks' errors.
TEST_P(GDNKernels, Bfloat16HeadsOf128AreWithinAHundredthOfTheOracle) {
  for (const double spread : {0.05, 0.2, 1.0}) {
    GDNCase c = heads_of_128({300}, -0.02);
    c.key_spread = spread;
    GDNProblem want(c), got(c), again(c);
    want.run(reference::ops());
    got.run(ops());
    EXPECT_LT(relative_rms(got.out(), want.out()), 1e-2) << "spread " << spread;
    EXPECT_LT(relative_rms(got.slot(2), want.slot(2)), 1e-2) << "spread " << spread;
    again.run(ops());
    EXPECT_TRUE(bit_equal(again.out(), got.out()));
  }
}

// Longer than one pass of a device's kernels over chunks.
TEST_P(GDNKernels, Bfloat16HeadsOf128LongRequestIsWithinAHundredthOfTheOracle) {
  GDNCase c = heads_of_128({8300, 70}, -0.02);
  c.group = 1;
  GDNProblem want(c), got(c);
  want.run(reference::ops());
  got.run(ops());
  EXPECT_LT(relative_rms(got.out(), want.out()), 1e-2);
  for (const int64_t slot : {2, 4}) EXPECT_LT(relative_rms(got.slot(slot), want.slot(slot)), 1e-2) << slot;
}

TEST_P(GDNKernels, Bfloat16HeadsOf128ReadZerosAndKeepNothing) {
  for (const int32_t len : {1, 70}) {
    const GDNCase c = heads_of_128({len, len, len});
    GDNProblem want(c), got(c);
    want.slots = got.slots = {{.read = kNoState, .write = 2}, {.read = 3, .write = 3}, {.read = 5, .write = kNoState}};
    want.run(reference::ops());
    got.run(ops());
    EXPECT_TRUE(all_close(got.out(), want.out(), gdn_tolerance(c.out, c.in)));
    for (const int64_t slot : {2, 3})
      EXPECT_TRUE(all_close(got.slot(slot), want.slot(slot), gdn_tolerance(DType::kF32, c.in)));
    for (const int64_t slot : {0, 1, 4, 5, 6, 7}) EXPECT_TRUE(bit_equal(got.slot(slot), want.slot(slot))) << slot;
  }
}

TEST_P(GDNKernels, HeadsOf128StrictSplitAnywhereHasTheSameBits) {
  const OpContext strict = {.threads = 2, .determinism = Determinism::kStrict};
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    GDNCase c = heads_of_128({75});
    c.in = c.out = type;
    GDNProblem want(c), got(c);
    want.run(ops(), strict);
    for (const std::vector<int32_t>& sizes : {std::vector<int32_t>{1}, {16}, {64}, {33, 17, 2}}) {
      got.run_split(ops(), sizes, strict);
      EXPECT_TRUE(bit_equal(got.out(), want.out()));
      EXPECT_TRUE(bit_equal(got.slot(2), want.slot(2)));
    }
  }
}

TEST_P(GDNKernels, RaggedBatchMatchesReference) {
  expect_matches_reference({.lens = {1, 0, 129, 3, 64, 16, 1, 15, 128, 65}});
}

TEST_P(GDNKernels, SnapshotsHoldTheStateAfterTheirTokens) {
  const int32_t spare = GDNProblem({.lens = {150, 20}}).first_spare();
  expect_matches_reference({.lens = {150, 20}}, {{.request = 0, .num_tokens = 64, .slot = spare},
                                                 {.request = 0, .num_tokens = 101, .slot = spare + 1},
                                                 {.request = 0, .num_tokens = 150, .slot = spare + 2},
                                                 {.request = 1, .num_tokens = 1, .slot = spare + 3}});
}

TEST_P(GDNKernels, SplitAnywhereThenDecodeMatchesReference) {
  const GDNCase c = {.lens = {75}};
  GDNProblem want(c), got(c);
  want.run(reference::ops());
  for (int32_t cut = 1; cut < 75; cut += 3) {
    SCOPED_TRACE(cut);
    got.run_split(ops(), {cut, 1});
    EXPECT_TRUE(all_close(got.out(), want.out(), gdn_tolerance(DType::kF32)));
    EXPECT_TRUE(all_close(got.slot(2), want.slot(2), gdn_tolerance(DType::kF32)));
  }
}

TEST_P(GDNKernels, StrictSplitAnywhereHasTheSameBits) {
  const OpContext strict = {.threads = 2, .determinism = Determinism::kStrict};
  const GDNCase c = {.lens = {75, 130}};
  GDNProblem want(c), got(c);
  want.run(ops(), strict);
  const std::vector<std::vector<int32_t>> splits = {{1}, {7}, {16}, {64}, {63, 1}, {33, 17, 2}};
  for (const std::vector<int32_t>& sizes : splits) {
    got.run_split(ops(), sizes, strict);
    EXPECT_TRUE(bit_equal(got.out(), want.out()));
    for (const int64_t slot : {2, 4}) EXPECT_TRUE(bit_equal(got.slot(slot), want.slot(slot)));
  }
}

TEST_P(GDNKernels, BitsDoNotDependOnThreadsOrTheRestOfTheBatch) {
  const GDNCase c = {.lens = {100, 5, 64}};
  GDNProblem one(c), two(c), alone(c);
  one.run(ops(), {.threads = 1});
  two.run(ops(), {.threads = 2});
  EXPECT_TRUE(bit_equal(one.out(), two.out()));
  alone.run_split(ops(), {1000});
  EXPECT_TRUE(bit_equal(one.out(), alone.out()));
}

TEST_P(GDNKernels, W23_StatesAreReadAndWrittenInThePool) {
  for (const int32_t len : {1, 40}) {
    const GDNCase c = {.lens = {len, len, len}};
    GDNProblem want(c), got(c);
    want.slots = got.slots = {{.read = kNoState, .write = 2}, {.read = 3, .write = 3}, {.read = 5, .write = kNoState}};
    want.run(reference::ops());
    got.run(ops(), {.threads = 2});
    EXPECT_TRUE(all_close(got.out(), want.out(), gdn_tolerance(DType::kF32)));
    for (const int64_t slot : {2, 3})
      EXPECT_TRUE(all_close(got.slot(slot), want.slot(slot), gdn_tolerance(DType::kF32)));
    for (const int64_t slot : {0, 1, 4, 5, 6, 7}) EXPECT_TRUE(bit_equal(got.slot(slot), want.slot(slot))) << slot;
  }
}

TEST_P(GDNKernels, W05_StrongDecayKeepsTheChunk) {
  expect_matches_reference({.lens = {64}, .mean_g = -0.6});
  expect_matches_reference({.lens = {128}, .mean_g = -1});
  expect_matches_reference({.lens = {128}, .mean_g = -20});
}

TEST_P(GDNKernels, W06_ChunkEqualsRecurrenceFromANonzeroState) {
  const GDNCase c = {.dk = 128, .dv = 32, .lens = {128}, .mean_g = -0.02, .key_spread = 0.05};
  expect_matches_reference(c);
  GDNProblem chunks(c), tokens(c);
  chunks.run(ops());
  tokens.run_split(ops(), {1});
  EXPECT_TRUE(all_close(chunks.out(), tokens.out(), gdn_tolerance(DType::kF32)));
}

TEST_P(GDNKernels, W20_QueryIsScaledOnce) {
  // One token from a zero state: out = beta (k . q) v, where only q carries 1 / sqrt(dk).
  for (const int32_t len : {1, 64}) {
    GDNProblem p({.k_heads = 1, .group = 1, .dk = 64, .dv = 8, .lens = {len}, .mean_g = -40});
    p.slots[0].read = kNoState;
    p.run(ops());
    EXPECT_TRUE(all_close(p.rows(0).slice(0, 1), p.first_token_from_zeros(), gdn_tolerance(DType::kF32)));
  }
}

TEST_P(GDNKernels, W21_OneL2NormConvention) {
  // Keys and queries so small that x / (|x| + 1e-6) and x / sqrt(|x|^2 + 1e-6) differ by a factor of 30.
  for (const int32_t len : {1, 64}) {
    SCOPED_TRACE(len);
    expect_matches_reference({.lens = {len}, .key_scale = 1e-5});
  }
}

HR_INSTANTIATE_KERNEL_SETS(GDNKernels);
HR_INSTANTIATE_RECORDED_SET(GDNKernels);

}  // namespace
}  // namespace headrace
