// Rotations by positions of three axes, of every set: against the oracle, and against the rotation by each axis alone.
#include "headrace/ops/rotary_embedding.h"

#include <gtest/gtest.h>

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
using testing_support::copy_of;
using testing_support::dense_tolerance;
using testing_support::Random;
using testing_support::random_tensor;
using testing_support::refusal_of;

constexpr auto kInRuns = RotarySections::Layout::kInRuns, kInterleaved = RotarySections::Layout::kInterleaved;
constexpr DType kFloats[] = {DType::kF32, DType::kBF16, DType::kF16};

std::string repeated(const std::string& letters, int times) {
  return times == 0 ? "" : letters + repeated(letters, times - 1);
}

// `axes` says by which axis each pair turns, as transformers' slices have it.
struct Sections {
  RotarySections sections;
  std::string axes;
  int64_t dim;

  int64_t half() const { return static_cast<int64_t>(axes.size()); }
};

// Whole and partial rotations; pairs that a device takes by eights and others; interleaved axes that end before the
// pairs do, and whose pairs end before they do.
std::vector<Sections> cases() {
  return {{{2, 3, 3, kInRuns}, "tthhhwww", 16},
          {{2, 1, 2, kInRuns}, "tthww", 20},
          {{0, 8, 0, kInRuns}, "hhhhhhhh", 24},
          {{16, 24, 24, kInRuns}, repeated("t", 16) + repeated("h", 24) + repeated("w", 24), 128},  // Qwen2-VL
          {{24, 20, 20, kInterleaved}, repeated("thw", 20) + "tttt", 128},                          // Qwen3-VL
          {{11, 11, 10, kInterleaved}, repeated("thw", 10) + "th", 256},                            // Qwen3.5
          {{2, 1, 1, kInterleaved}, "thwt", 32},
          {{5, 2, 1, kInterleaved}, "thwthttt", 16},
          {{0, 4, 4, kInterleaved}, "thwthwth", 16}};
}

class RotaryEmbeddingSections : public testing_support::KernelSetTest {};

struct RotaryProblem {
  static constexpr int64_t kTokens = 21;  // more than a task of a CPU's

  RotaryProblem(const Sections& of, DType type) : c(of), x(random_tensor(random, type, {kTokens, 3, of.dim})) {
    for (int64_t axis = 0; axis < RotarySections::kAxes; ++axis) {
      for (int64_t t = 0; t < kTokens; ++t)
        set_element(of_axis(axis), t, static_cast<double>((37 + 11 * axis) * t + axis));
    }
    for (int64_t i = 0; i < c.half(); ++i) set_element(inv_freq, i, 1.0 / static_cast<double>(1 + i * i));
  }
  TensorView of_axis(int64_t axis) const { return positions().select(axis); }
  TensorView positions() const { return wider.view().narrow(1, 2, 2 + kTokens); }  // rows lie apart
  RotaryEmbeddingArgs args(const TensorView& rotated) const {
    return {.x = rotated, .positions = positions(), .inv_freq = inv_freq, .magnitude = 1.1f, .sections = c.sections};
  }
  // What `set` makes of x by `at`.
  Tensor turned(const OpSet& set, const TensorView& at) const {
    Tensor copy = copy_of(x);
    RotaryEmbeddingArgs a = args(copy);
    a.positions = at;
    set.rotary_embedding(a, {.threads = 2});
    return copy;
  }

  Random random{7};
  const Sections& c;
  Tensor x, wider = Tensor::zeros(DType::kI32, {RotarySections::kAxes, kTokens + 5}),
            inv_freq = Tensor(DType::kF32, {c.half()});
};

TEST_P(RotaryEmbeddingSections, MatchTheOracleWhereAxesDiffer) {
  for (const Sections& c : cases()) {
    for (const DType type : kFloats) {
      SCOPED_TRACE(testing::Message() << c.axes << " of " << c.dim << ", " << name_of(type));
      const RotaryProblem p(c, type);
      const Tensor got = p.turned(ops(), p.positions()), want = p.turned(reference::ops(), p.positions());
      EXPECT_TRUE(all_close(got, want, dense_tolerance(type)));
      EXPECT_TRUE(bit_equal(got.view().narrow(2, 2 * c.half(), c.dim), p.x.view().narrow(2, 2 * c.half(), c.dim)));
    }
  }
}

TEST_P(RotaryEmbeddingSections, TurnEachPairAsItsAxisAloneWould) {
  for (const Sections& c : cases()) {
    for (const DType type : kFloats) {
      const RotaryProblem p(c, type);
      const Tensor got = p.turned(ops(), p.positions());
      for (int64_t axis = 0; axis < RotarySections::kAxes; ++axis) {
        const Tensor alone = p.turned(ops(), p.of_axis(axis));
        for (int64_t i = 0; i < c.half(); ++i) {
          if (c.axes[static_cast<size_t>(i)] != "thw"[axis]) continue;
          for (const int64_t at : {i, i + c.half()}) {
            EXPECT_TRUE(bit_equal(got.view().narrow(2, at, at + 1), alone.view().narrow(2, at, at + 1)))
                << c.axes << " of " << c.dim << ", " << name_of(type) << ", pair " << i;
          }
        }
      }
    }
  }
}

TEST_P(RotaryEmbeddingSections, OfTextAreThePlainRotation) {
  for (const Sections& c : cases()) {
    for (const DType type : kFloats) {
      const RotaryProblem p(c, type);
      const Tensor plain = p.turned(ops(), p.of_axis(0));
      for (const int64_t axis : {1, 2}) {
        for (int64_t t = 0; t < RotaryProblem::kTokens; ++t)
          set_element(p.of_axis(axis), t, element_as_double(p.of_axis(0), t));
      }
      EXPECT_TRUE(bit_equal(p.turned(ops(), p.positions()), plain)) << c.axes << " of " << c.dim;
    }
  }
}

TEST(RotaryEmbeddingArgs, RefusesSectionsThatAreNotThePairsAndAxesWithoutThem) {
  const Sections c{{2, 3, 3, kInRuns}, "tthhhwww", 16};
  const RotaryProblem p(c, DType::kF32);
  const auto refused = [&](auto change) {
    RotaryEmbeddingArgs a = p.args(p.x);
    EXPECT_NO_THROW(check(a));
    change(a);
    return refusal_of([&] { check(a); }).sentence;
  };
  using Args = RotaryEmbeddingArgs;
  EXPECT_EQ(refused([](Args& a) { a.sections->t = 1; }),
            "rotary_embedding: sections are 1, 3 and 3, expected counts that add up to 8 pairs");
  EXPECT_NE(refused([](Args& a) { a.sections->t = -1, a.sections->h = 6; }), "");
  EXPECT_NE(refused([](Args& a) { a.sections->w = 4; }), "");
  EXPECT_NE(refused([](Args& a) { a.sections->w = 4, a.positions = a.positions.select(0); }), "");
  EXPECT_EQ(refused([](Args& a) { a.sections.reset(); }),
            "rotary_embedding: positions have 3 axes and there are no sections that say which pairs turn by which");
  EXPECT_NE(refused([](Args& a) { a.positions = a.positions.slice(0, 2); }), "");
  EXPECT_NE(refused([](Args& a) { a.positions = a.positions.narrow(1, 0, 5); }), "");
}

HR_INSTANTIATE_KERNEL_SETS(RotaryEmbeddingSections);

}  // namespace
}  // namespace headrace
