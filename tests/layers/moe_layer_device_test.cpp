// The mixture of experts on a device against the same layer on the host: every rule of routing, both kinds of products.
// Skipped where there is no device.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <functional>

#include "headrace/core/device_runtime.h"
#include "headrace/layers/moe_layer.h"
#include "headrace/ops/cpu/dispatch.h"
#include "headrace/ops/cuda_module.h"
#include "headrace/ops/reference/reference_ops.h"
#include "support/all_close.h"
#include "support/device_mirror.h"
#include "support/gpu.h"
#include "support/random.h"
#include "support/safetensors_writer.h"

namespace headrace::testing_support {
namespace {

using Router = ExpertRouterConfig;

struct Case {
  std::string name;
  DType weights = DType::kBF16, activations = DType::kBF16;
  MoEConfig config;
  double bias = 0.3;  // about as large are the values that select
};

// The sizes fit the tensor cores, or not.
constexpr Router kEven{.hidden = 72, .num_experts = 12, .experts_per_token = 3};
constexpr Router kWide{.hidden = 192, .num_experts = 12, .experts_per_token = 3};
constexpr Router kOdd{.hidden = 13, .num_experts = 5, .experts_per_token = 2};

Router with(Router base, const std::function<void(Router&)>& change) {
  change(base);
  return base;
}

std::vector<Case> cases() {
  const Router raw = with(kEven, [](Router& r) { r.norm_topk_prob = Router::Renormalise::kNo, r.weight_scale = 2.5f; });
  const Router grouped = with(kEven, [](Router& r) {
    r.scores = Router::Scores::kSigmoid, r.selection_bias = Router::SelectionBias::kYes;
    r.num_groups = 4, r.groups_per_token = 2;
    r.expert_scale = Router::ExpertScale::kYes;
  });
  const Router chosen = with(
      kWide, [](Router& r) { r.scores = Router::Scores::kSigmoid, r.selection_bias = Router::SelectionBias::kYes; });
  return {
      {"several_tiles", DType::kBF16, DType::kBF16, {.intermediate = 448, .router = kWide}},
      {"several_tiles_float16", DType::kF16, DType::kF16, {.intermediate = 448, .router = kWide}},
      {"empty_experts", DType::kBF16, DType::kBF16, {.intermediate = 64, .router = chosen}, 100},
      {"tensor_cores", DType::kBF16, DType::kBF16, {.intermediate = 40, .router = kEven}},
      {"float16", DType::kF16, DType::kF16, {.intermediate = 40, .router = raw}},
      {"float32", DType::kF32, DType::kF32, {.intermediate = 40, .shared_intermediate = 24, .router = grouped}},
      {"widened", DType::kBF16, DType::kF32, {.intermediate = 40, .router = kEven}},
      {"odd_sizes", DType::kBF16, DType::kBF16, {.intermediate = 7, .shared_intermediate = 9, .router = kOdd}},
      {"gelu", DType::kBF16, DType::kBF16, {.intermediate = 40, .activation = Activation::kGelu, .router = kEven}},
      {"gelu_several_tiles",
       DType::kBF16,
       DType::kBF16,
       {.intermediate = 448, .activation = Activation::kGelu, .router = kWide}},
      {"gelu_float32", DType::kF32, DType::kF32, {.intermediate = 7, .activation = Activation::kGelu, .router = kOdd}},
      {"odd_inner", DType::kBF16, DType::kBF16, {.intermediate = 7, .router = kEven}},
      {"ungated_shared",
       DType::kBF16,
       DType::kBF16,
       {.intermediate = 40, .shared_intermediate = 24, .shared_gate = MoEConfig::SharedGate::kNone, .router = grouped}},
      // Four tokens of it have more sums than there are counters for.
      {"long_rows",
       DType::kBF16,
       DType::kBF16,
       {.intermediate = 64, .router = {.hidden = 8192, .num_experts = 4, .experts_per_token = 2}}},
      // A shared expert of the others' size is one more that every token chooses.
      {"chosen_shared", DType::kBF16, DType::kBF16, {.intermediate = 448, .shared_intermediate = 448, .router = kWide}},
      {"chosen_shared_float32",
       DType::kF32,
       DType::kF32,
       {.intermediate = 40, .shared_intermediate = 40, .router = grouped}},
      {"chosen_shared_ungated",
       DType::kF16,
       DType::kF16,
       {.intermediate = 40, .shared_intermediate = 40, .shared_gate = MoEConfig::SharedGate::kNone, .router = raw}}};
}

class MoELayerOnDevice : public testing::TestWithParam<std::tuple<std::string_view, Case>> {
 protected:
  void SetUp() override {
    if (mirrored_cuda_ops() == nullptr) GTEST_SKIP() << "no CUDA device";
    const auto& [name, type, activations, c, bias_size] = one();
    Random random(31);
    const auto values = [&, dtype = type](const Shape& shape, double size) {
      return random_tensor(random, dtype, shape, size);
    };
    const int64_t hidden = c.router.hidden, shared = c.shared_intermediate;
    const Tensor gate = values({c.router.num_experts, hidden}, 1), bias = values({c.router.num_experts}, bias_size);
    const Tensor gate_up = values({c.router.num_experts, 2 * c.intermediate, hidden}, 0.2);
    const Tensor down = values({c.router.num_experts, hidden, c.intermediate}, 0.3);
    std::vector<test::NamedTensor> stored = {{"gate.weight", gate},
                                             {"gate.expert_bias", bias},
                                             {"gate.per_expert_scale", bias},
                                             {"experts.gate_up_proj", gate_up},
                                             {"experts.down_proj", down}};
    const int64_t width = std::max<int64_t>(shared, 1);
    const Tensor shared_in = values({width, hidden}, 0.2), shared_out = values({hidden, width}, 0.2);
    const Tensor shared_gate = values({1, hidden}, 0.2);
    if (shared > 0) {
      stored.push_back({"shared_expert.gate_proj.weight", shared_in});
      stored.push_back({"shared_expert.up_proj.weight", shared_in});
      stored.push_back({"shared_expert.down_proj.weight", shared_out});
      stored.push_back({"shared_expert_gate.weight", shared_gate});
    }
    test::write_safetensors(directory_ / "model.safetensors", stored);
  }
  static const Case& one() { return std::get<1>(GetParam()); }
  Tensor on_host(const TensorView& x) const {
    Checkpoint checkpoint = Checkpoint::open(directory_.path());
    const MoELayer layer(WeightScope(checkpoint), one().config);
    Tensor y(x.dtype(), x.shape());
    layer.forward({.ops = &cpu::select_kernel_set(), .dtype = x.dtype()}, x, y);
    return y;
  }
  enum class Writes : uint8_t { kResult, kSum };  // kSum: adds to a copy of x
  Tensor on_device(const TensorView& x, Determinism determinism = Determinism::kFast,
                   Writes writes = Writes::kResult) const {
    DeviceRuntime& device = testing_support::gpu();
    Checkpoint checkpoint = Checkpoint::open(directory_.path());
    checkpoint.place_on(device);
    const MoELayer layer(WeightScope(checkpoint), one().config);
    const Tensor there = copied_to(device, copy_of(x)), out = copied_to(device, copy_of(x));
    const LayerContext context{.ops = &cuda_module().ops(std::get<0>(GetParam())),
                               .op = {.determinism = determinism, .stream = device.stream()},
                               .dtype = x.dtype(),
                               .runtime = &device};
    const MoELayer::Rows rows{.x = there, .routed_by = {}, .num_rows = {}};
    writes == Writes::kSum ? layer.add_to(context, rows, out) : layer.forward(context, rows, out);
    Tensor y(x.dtype(), x.shape());
    device.copy_to_host(y.data(), out.data(), static_cast<size_t>(out.bytes()));
    return y;
  }
  static double largest(const TensorView& x) {
    double most = 0;
    for (int64_t i = 0; i < x.numel(); ++i) most = std::max(most, std::abs(element_as_double(x, i)));
    return most;
  }
  Tensor input(int64_t tokens) const {
    Random random(32);
    return random_tensor(random, one().activations, {tokens, one().config.router.hidden});
  }

  test::TempDir directory_;
};

// One token, a few, unsorted and sorted, and enough for the tiles of many rows: of one tile for an expert, and of
// several, sorted by a cluster.
TEST_P(MoELayerOnDevice, GivesWhatTheHostGives) {
  const DType type = one().activations;
  // Of the largest result: what rounding the inner channels costs, the host's set of kernels rounding oftener.
  const double share = type == DType::kF32 ? 1e-5 : type == DType::kF16 ? 2e-3 : 1.6e-2;
  for (const int64_t tokens : {1, 4, 5, 19, 400, 1500}) {
    const Tensor x = input(tokens), want = on_host(x);
    EXPECT_TRUE(all_close(on_device(x), want, {.abs = share * largest(want)})) << tokens;
  }
}

TEST_P(MoELayerOnDevice, AddsToWhatIsThere) {
  const DType type = one().activations;
  const double share = type == DType::kF32 ? 1e-5 : type == DType::kF16 ? 2e-3 : 1.6e-2;
  for (const int64_t tokens : {2, 19}) {
    const Tensor x = input(tokens), want = copy_of(x);
    const Tensor experts = on_host(x);
    reference::pointwise({.kind = PointwiseKind::kAdd, .x = x, .y = experts, .out = want}, {});
    EXPECT_TRUE(all_close(on_device(x, Determinism::kFast, Writes::kSum), want, {.abs = share * largest(want)}))
        << tokens;
  }
}

TEST_P(MoELayerOnDevice, StrictTokensHaveTheSameBitsAlone) {
  const Tensor x = input(400), all = on_device(x, Determinism::kStrict);
  for (const auto& [begin, end] : {std::array{0, 1}, {5, 30}, {31, 35}, {399, 400}}) {
    EXPECT_TRUE(bit_equal(on_device(x.view().slice(begin, end), Determinism::kStrict), all.view().slice(begin, end)));
  }
}

// More than a grid's side has room for, or, of long rows, than the scratch has for their results: some tokens, or some
// channels of down, at a time.
TEST_P(MoELayerOnDevice, TokensInPartsHaveTheBitsOfThoseAtOnce) {
  constexpr int64_t kFew = 400;
  const int64_t hidden = one().config.router.hidden, tokens = hidden > 1000 ? 11000 : 66000;
  const Tensor few = input(kFew), want = on_device(few, Determinism::kStrict), x(few.dtype(), {tokens, hidden});
  const auto for_runs = [&](const auto& f) {
    for (int64_t begin = 0; begin < tokens; begin += kFew) f(begin, std::min(begin + kFew, tokens));
  };
  for_runs([&](int64_t begin, int64_t end) {
    const TensorView run = x.view().slice(begin, end);
    std::memcpy(run.data(), few.data(), static_cast<size_t>(run.numel() * size_of(run.dtype())));
  });
  const Tensor y = on_device(x, Determinism::kStrict);
  for_runs([&](int64_t begin, int64_t end) {
    ASSERT_TRUE(bit_equal(y.view().slice(begin, end), want.view().slice(0, end - begin))) << begin;
  });
}

// The graph is recorded once; how many of its rows count is read on the device.
TEST_P(MoELayerOnDevice, PaddingOfAGraphRunsNoExpert) {
  const MoEConfig& config = one().config;
  if (config.shared_intermediate != 0 && config.shared_intermediate != config.intermediate)
    return;  // adds to every row
  constexpr int64_t kRows = 24;
  DeviceRuntime& device = testing_support::gpu();
  Checkpoint checkpoint = Checkpoint::open(directory_.path());
  checkpoint.place_on(device);
  const MoELayer layer(WeightScope(checkpoint), one().config);
  const Tensor x = input(kRows), there = copied_to(device, copy_of(x)), out(x.dtype(), x.shape(), device);
  const Tensor num_rows(DType::kI32, {1}, device);
  const LayerContext context{.ops = &cuda_module().ops(std::get<0>(GetParam())),
                             .op = {.determinism = Determinism::kStrict, .stream = device.stream()},
                             .dtype = x.dtype(),
                             .runtime = &device};
  const auto forward = [&] { layer.forward(context, {.x = there, .routed_by = {}, .num_rows = num_rows}, out); };
  const auto count = [&](int32_t rows) { device.copy_to_device(num_rows.data(), &rows, sizeof(rows)); };
  count(0);
  forward();
  device.synchronize();
  device.begin_capture();
  forward();
  const auto graph = device.end_capture();
  const Tensor all = on_device(x, Determinism::kStrict), none = Tensor::zeros(x.dtype(), x.shape());
  for (const int32_t rows : {5, 0, 24, 1}) {
    SCOPED_TRACE(rows);
    count(rows);
    graph->launch();
    Tensor y(x.dtype(), x.shape());
    device.copy_to_host(y.data(), out.data(), static_cast<size_t>(out.bytes()));
    if (rows > 0) {
      EXPECT_TRUE(bit_equal(y.view().slice(0, rows), all.view().slice(0, rows)));
    }
    if (rows < kRows) {
      EXPECT_TRUE(bit_equal(y.view().slice(rows, kRows), none.view().slice(rows, kRows)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, MoELayerOnDevice,
                         testing::Combine(testing::ValuesIn(kCudaSets), testing::ValuesIn(cases())),
                         [](const auto& one) { return str(std::get<0>(one.param), "_", std::get<1>(one.param).name); });

}  // namespace
}  // namespace headrace::testing_support
