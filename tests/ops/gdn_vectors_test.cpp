// The conformance vectors of Gated DeltaNet, computed by hand in float64, on the oracle and on every kernel set.
#include <bit>
#include <cmath>
#include <vector>

#include "ops/kernel_sets.h"
#include "support/all_close.h"

namespace headrace {
namespace {

using testing_support::all_close;
using testing_support::KernelSetTest;

constexpr testing_support::Tolerance kSixDigits = {.abs = 2e-6};

Tensor tensor(const Shape& shape, const std::vector<double>& values) {
  Tensor t(DType::kF32, shape);
  for (size_t i = 0; i < values.size(); ++i) set_element(t, static_cast<int64_t>(i), values[i]);
  return t;
}

class GDNVectors : public KernelSetTest {};

TEST_P(GDNVectors, Convolution) {
  const Tensor x = tensor({5, 1}, {1, 2, -1, 0.5, 3}), weight = tensor({1, 4}, {0.1, 0.2, 0.3, 0.4});
  const Tensor state = tensor({1, 1, 3}, {0, 0, 0}), out(DType::kF32, {5, 1});
  const std::vector<KeySpan> spans = {{.q_len = 5}};
  const std::vector<StateSlots> slots = {{.read = kNoState, .write = 0}};
  ops().causal_conv1d({.x = x, .weight = weight, .state = state, .spans = spans, .slots = slots, .out = out}, {});
  EXPECT_TRUE(all_close(out, tensor({5, 1}, {0.239475, 0.825286, 0.239475, 0.239475, 1.072075}), kSixDigits));
  EXPECT_TRUE(all_close(state, tensor({1, 1, 3}, {-1, 0.5, 3}), {}));
}

// Also as lanes behind the last channel, where what an earlier call left may be such a NaN.
TEST_P(GDNVectors, ConvolutionOfANaNOfAnyBits) {
  const Tensor x = tensor({5, 1}, {1, 2, -1, 0.5, 3}), weight = tensor({1, 4}, {0.1, 0.2, 0.3, 0.4});
  x.data_as<float>()[4] = std::bit_cast<float>(0xffff8003u);
  const Tensor state = tensor({1, 1, 3}, {0, 0, 0}), out(DType::kF32, {5, 1});
  const std::vector<KeySpan> spans = {{.q_len = 5}};
  const std::vector<StateSlots> slots = {{.read = kNoState, .write = 0}};
  ops().causal_conv1d({.x = x, .weight = weight, .state = state, .spans = spans, .slots = slots, .out = out}, {});
  EXPECT_TRUE(all_close(out.view().slice(0, 4), tensor({4, 1}, {0.239475, 0.825286, 0.239475, 0.239475}), kSixDigits));
  EXPECT_TRUE(std::isnan(out.data_as<float>()[4]));
}

TEST_P(GDNVectors, GatedDeltaRule) {
  const Tensor qkv = tensor({3, 8}, {1,   2,    0.5,  1,   1,    -1,   0.5, 2,  //
                                     0.5, -1,   2,    0.5, 0.25, 0.75, -1,  1,  //
                                     -1,  0.25, -0.5, 1.5, 2,    0,    0,   -0.5});
  const Tensor a = tensor({3, 2}, {0, 1, -0.5, 0.5, 0.3, -1}), b = tensor({3, 2}, {0, 1, 2, -1, 0.5, 0});
  const Tensor a_log = tensor({2}, {0, std::log(2.0)}), dt_bias = tensor({2}, {0.1, -0.2});
  const Tensor outputs = tensor({3, 2, 2}, {0.391107, -0.346042, 0.258468, 1.046134,    //
                                            -0.135830, 0.292624, -0.071116, -0.077532,  //
                                            0.422630, -0.167964, 0.089719, -0.221329});
  const Tensor last = tensor({1, 2, 2, 2}, {-0.304105, 1.247914, 0.252773, 0.031697,  //
                                            -0.136875, -0.024357, 0.294511, -0.112517});
  const std::vector<KeySpan> spans = {{.q_len = 3}};
  const std::vector<StateSlots> slots = {{.read = 0, .write = 0}};
  const Tensor state = tensor({1, 2, 2, 2}, {0.1, 0.2, 0.3, -0.1, 0, 0, 0.5, 0.5}), out(DType::kF32, {3, 2, 2});
  ops().gated_delta_rule({.qkv = qkv,
                          .a = a,
                          .b = b,
                          .a_log = a_log,
                          .dt_bias = dt_bias,
                          .state = state,
                          .num_k_heads = 1,
                          .spans = spans,
                          .slots = slots,
                          .out = out},
                         {});
  EXPECT_TRUE(all_close(out, outputs, kSixDigits));
  EXPECT_TRUE(all_close(state, last, kSixDigits));
}

HR_INSTANTIATE_KERNEL_SETS(GDNVectors);
INSTANTIATE_TEST_SUITE_P(Oracle, GDNVectors, testing::Values("reference"), [](const auto& set) { return set.param; });

}  // namespace
}  // namespace headrace
