// norm_rotary of every set that has it, against the ops that it stands for.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "headrace/ops/norm_rotary.h"
#include "headrace/ops/reference/reference_ops.h"
#include "ops/kernel_sets.h"
#include "support/all_close.h"
#include "support/random.h"
#include "support/tolerances.h"

namespace headrace {
namespace {

using testing_support::all_close;
using testing_support::bit_equal;
using testing_support::dense_tolerance;
using testing_support::Random;
using testing_support::random_tensor;

struct Heads {
  int64_t tokens = 5, q_heads = 6, k_heads = 2, dim = 128, rotated = 128, row = 0;  // row: elements from head to head
  bool norm = true;
  std::optional<RotarySections> sections = std::nullopt;  // then positions have axes
};

struct Problem {
  explicit Problem(const Heads& c, DType type)
      : norm(c.norm),
        sections(c.sections),
        q_rows(random_tensor(random, type, {c.tokens, c.q_heads, std::max(c.row, c.dim)})),
        k(random_tensor(random, type, {c.tokens, c.k_heads, c.dim})),
        q_weight(random_tensor(random, DType::kBF16, {c.dim})),
        k_weight(random_tensor(random, DType::kBF16, {c.dim})),
        positions(DType::kI32, c.sections ? Shape{RotarySections::kAxes, c.tokens} : Shape{c.tokens}),
        inv_freq(DType::kF32, {c.rotated / 2}),
        dim(c.dim) {
    for (int64_t i = 0; i < positions.numel(); ++i) positions.data_as<int32_t>()[i] = static_cast<int32_t>(1 + 917 * i);
    for (int64_t i = 0; i < c.rotated / 2; ++i) set_element(inv_freq, i, 1.0 / static_cast<double>(1 + i * i));
  }
  NormRotaryArgs args() const {
    NormRotaryArgs a{.q = q_rows.view().narrow(2, 0, dim),
                     .k = k,
                     .weight_form = WeightForm::kPlusOne,
                     .positions = positions,
                     .inv_freq = inv_freq,
                     .magnitude = 1.1f,
                     .sections = sections};
    if (norm) a.q_weight = q_weight, a.k_weight = k_weight;
    return a;
  }

  Random random{11};
  bool norm;
  std::optional<RotarySections> sections;
  Tensor q_rows, k, q_weight, k_weight, positions, inv_freq;
  int64_t dim;
};

class NormRotary : public testing_support::KernelSetTest {
 protected:
  void SetUp() override {
    KernelSetTest::SetUp();
    if (!IsSkipped() && ops().norm_rotary == not_fused<const NormRotaryArgs&>)
      GTEST_SKIP() << "kernel set '" << GetParam() << "' has none";
  }
};

// Heads of one and two sixteens of pieces, some with fewer, a quarter rotated, gates between the heads, no norm; the
// last two of these are served by the ops one by one. Then an odd number of heads, of which a warp has two tokens', and
// positions of three axes, which the ops one by one serve too.
constexpr RotarySections kSections{24, 20, 20, RotarySections::Layout::kInterleaved};
constexpr Heads kCases[] = {{},
                            {.dim = 256, .rotated = 64, .row = 512},
                            {.tokens = 1, .q_heads = 3, .k_heads = 1, .dim = 64, .rotated = 48},
                            {.dim = 80, .rotated = 80},
                            {.dim = 192, .rotated = 128, .norm = false},
                            {.dim = 320, .rotated = 320},
                            {.dim = 36, .rotated = 12},
                            {.q_heads = 7},
                            {.sections = kSections}};

TEST_P(NormRotary, BitsAreThoseOfTheOpsOneByOne) {
  for (const Heads& c : kCases) {
    for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
      SCOPED_TRACE(testing::Message() << "heads of " << c.dim << ", " << name_of(type));
      const Problem together(c, type), apart(c, type), oracle(c, type);
      ops().norm_rotary(together.args(), {});
      norm_rotary_apart(ops(), apart.args(), OpContext{});
      EXPECT_TRUE(bit_equal(together.q_rows, apart.q_rows));
      EXPECT_TRUE(bit_equal(together.k, apart.k));
      norm_rotary_apart(reference::ops(), oracle.args(), OpContext{});
      EXPECT_TRUE(all_close(together.q_rows, oracle.q_rows, dense_tolerance(type)));
      EXPECT_TRUE(all_close(together.k, oracle.k, dense_tolerance(type)));
    }
  }
}

TEST(NormRotaryArgs, RefusesOneWeightWithoutTheOther) {
  const Problem p({}, DType::kF32);
  NormRotaryArgs args = p.args();
  args.k_weight = {};
  EXPECT_THROW(check(args), Error);
}

TEST(NormRotaryArgs, SectionsReachTheRotationOfBoth) {
  const Problem p({.sections = kSections}, DType::kF32);
  NormRotaryArgs args = p.args();
  check(args);
  for (const TensorView& x : {args.q, args.k}) EXPECT_EQ(args.rotation_of(x).sections, kSections);
  args.sections.reset();
  EXPECT_THROW(check(args), Error);
}

HR_INSTANTIATE_KERNEL_SETS(NormRotary);

}  // namespace
}  // namespace headrace
