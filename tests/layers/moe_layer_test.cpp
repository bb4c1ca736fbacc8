// The mixture of experts against a direct sum in double, in both layouts of experts.
#include "headrace/layers/moe_layer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "headrace/ops/cpu/dispatch.h"
#include "support/all_close.h"
#include "support/random.h"
#include "support/safetensors_writer.h"

namespace headrace::testing_support {
namespace {

constexpr int64_t kHidden = 12, kExperts = 5, kChosen = 2, kIntermediate = 7, kTokens = 19;
constexpr auto kRenormalise = ExpertRouterConfig::Renormalise::kYes;
const MoEConfig kConfig = {.intermediate = kIntermediate,
                           .router = {.hidden = kHidden, .num_experts = kExperts, .experts_per_token = kChosen}};

struct Weights {
  Tensor router, gate_up, down;
};

Weights random_weights() {
  Random random(21);
  return {random_tensor(random, DType::kF32, {kExperts, kHidden}),
          random_tensor(random, DType::kF32, {kExperts, 2 * kIntermediate, kHidden}, 0.3),
          random_tensor(random, DType::kF32, {kExperts, kHidden, kIntermediate}, 0.3)};
}

Checkpoint stacked(const test::TempDir& directory, const Weights& w) {
  test::write_safetensors(
      directory / "model.safetensors",
      {{"gate.weight", w.router}, {"experts.gate_up_proj", w.gate_up}, {"experts.down_proj", w.down}});
  return Checkpoint::open(directory.path());
}

Checkpoint one_by_one(const test::TempDir& directory, const Weights& w) {
  std::vector<test::NamedTensor> tensors = {{"gate.weight", w.router}};
  for (int64_t e = 0; e < kExperts; ++e) {
    const TensorView both = w.gate_up.view().select(e);
    tensors.push_back({str("experts.", e, ".gate_proj.weight"), both.slice(0, kIntermediate)});
    tensors.push_back({str("experts.", e, ".up_proj.weight"), both.slice(kIntermediate, 2 * kIntermediate)});
    tensors.push_back({str("experts.", e, ".down_proj.weight"), w.down.view().select(e)});
  }
  test::write_safetensors(directory / "model.safetensors", tensors);
  return Checkpoint::open(directory.path());
}

Tensor run(Checkpoint& checkpoint, const MoEConfig& config, const TensorView& x, OpContext op = {.threads = 2}) {
  const MoELayer layer(WeightScope(checkpoint), config);
  Tensor y(DType::kF32, x.shape());
  poison(y);
  layer.forward({.ops = &cpu::select_kernel_set(), .op = op, .dtype = DType::kF32}, x, y);
  return y;
}

std::vector<double> product(const TensorView& w, int64_t first_row, int64_t rows, const std::vector<double>& x) {
  std::vector<double> y(static_cast<size_t>(rows));
  const auto in = static_cast<int64_t>(x.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < in; ++i) {
      y[static_cast<size_t>(r)] += element_as_double(w, (first_row + r) * in + i) * x[static_cast<size_t>(i)];
    }
  }
  return y;
}

// Softmax over all experts, then the best ones, then their sum.
Tensor oracle(const Weights& w, ExpertRouterConfig::Renormalise renormalise, const TensorView& x) {
  Tensor y = Tensor::zeros(DType::kF32, x.shape());
  for (int64_t t = 0; t < x.dim(0); ++t) {
    std::vector<double> row(kHidden), sum(kHidden);
    for (int64_t d = 0; d < kHidden; ++d) row[static_cast<size_t>(d)] = element_as_double(x, t * kHidden + d);
    std::vector<double> p = product(w.router, 0, kExperts, row);
    double total = 0, kept = 0;
    for (double& value : p) total += value = std::exp(value);
    std::vector<size_t> order(kExperts);
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, [&p](size_t a, size_t b) { return p[a] > p[b]; });
    for (size_t j = 0; j < kChosen; ++j) kept += p[order[j]] / total;
    for (size_t j = 0; j < kChosen; ++j) {
      const auto e = static_cast<int64_t>(order[j]);
      const std::vector<double> gate = product(w.gate_up, e * 2 * kIntermediate, kIntermediate, row);
      std::vector<double> up = product(w.gate_up, (e * 2 + 1) * kIntermediate, kIntermediate, row);
      for (size_t i = 0; i < up.size(); ++i) up[i] *= gate[i] / (1 + std::exp(-gate[i]));
      const std::vector<double> out = product(w.down, e * kHidden, kHidden, up);
      const double weight = p[order[j]] / total / (renormalise == kRenormalise ? kept : 1);
      for (size_t d = 0; d < sum.size(); ++d) sum[d] += weight * out[d];
    }
    for (int64_t d = 0; d < kHidden; ++d) set_element(y, t * kHidden + d, sum[static_cast<size_t>(d)]);
  }
  return y;
}

constexpr Tolerance kTolerance{.abs = 5e-6, .rel = 2e-5};  // sums of 12 products in float32, three deep

TEST(MoELayer, AgreesWithTheDirectSumWhetherOrNotItRenormalises) {
  const test::TempDir directory;
  const Weights w = random_weights();
  Checkpoint checkpoint = stacked(directory, w);
  Random random(22);
  const Tensor x = random_tensor(random, DType::kF32, {kTokens, kHidden});
  for (const auto renormalise : {ExpertRouterConfig::Renormalise::kNo, ExpertRouterConfig::Renormalise::kYes}) {
    MoEConfig config = kConfig;
    config.router.norm_topk_prob = renormalise;
    EXPECT_TRUE(all_close(run(checkpoint, config, x), oracle(w, renormalise, x), kTolerance));
  }
}

TEST(MoELayer, BothLayoutsOfExpertsGiveTheSameBits) {
  const test::TempDir a, b;
  const Weights w = random_weights();
  Checkpoint one = stacked(a, w), other = one_by_one(b, w);
  Random random(23);
  const Tensor x = random_tensor(random, DType::kF32, {kTokens, kHidden});
  EXPECT_TRUE(bit_equal(run(one, kConfig, x), run(other, kConfig, x)));
  other.require_all_used();
}

TEST(MoELayer, TiesGoToTheLowerExpert) {
  const test::TempDir directory;
  Weights w = random_weights();
  w.router = Tensor::zeros(DType::kF32, {kExperts, kHidden});  // every expert is as good as every other
  Checkpoint checkpoint = stacked(directory, w);
  Random random(24);
  const Tensor x = random_tensor(random, DType::kF32, {3, kHidden});
  EXPECT_TRUE(all_close(run(checkpoint, kConfig, x), oracle(w, kRenormalise, x), kTolerance));  // a stable sort
}

TEST(MoELayer, StrictTokensHaveTheSameBitsAloneAndWithAnyThreads) {
  const test::TempDir directory;
  Checkpoint checkpoint = stacked(directory, random_weights());
  Random random(25);
  const Tensor x = random_tensor(random, DType::kF32, {kTokens, kHidden});
  const Tensor all = run(checkpoint, kConfig, x, {.threads = 2, .determinism = Determinism::kStrict});
  for (const int64_t t : {0, 7, 18}) {
    const OpContext alone{.threads = 1, .determinism = Determinism::kStrict};
    EXPECT_TRUE(bit_equal(run(checkpoint, kConfig, x.view().slice(t, t + 1), alone), all.view().slice(t, t + 1)));
  }
}

TEST(MoELayer, AnExpertThatIsMissingIsNamed) {
  const test::TempDir directory;
  const Weights w = random_weights();
  test::write_safetensors(directory / "model.safetensors", {{"gate.weight", w.router}});
  Checkpoint checkpoint = Checkpoint::open(directory.path());
  try {
    const MoELayer layer(WeightScope(checkpoint), kConfig);
    FAIL() << "nothing was refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kModelFile);
    EXPECT_NE(std::string(error.what()).find("experts.0."), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace headrace::testing_support
