// Products of one input on a device, whose weights lie side by side there or not. Skipped where there is no device.
#include <gtest/gtest.h>

#include <array>

#include "headrace/core/device_runtime.h"
#include "headrace/layers/linear.h"
#include "headrace/ops/cuda_module.h"
#include "support/all_close.h"
#include "support/device_mirror.h"
#include "support/gpu.h"
#include "support/random.h"
#include "support/safetensors_writer.h"
#include "support/tolerances.h"

namespace headrace::testing_support {
namespace {

constexpr int64_t kIn = 256;
constexpr std::array<LinearRows, 3> kLayers = {{{"q", 512}, {"k", 128}, {"v", 128}}};
constexpr int64_t kAll = 512 + 128 + 128;

class LinearOnDevice : public testing::TestWithParam<std::string_view> {
 protected:
  enum class Place : uint8_t { kTogether, kApart };

  void SetUp() override {
    if (mirrored_cuda_ops() == nullptr) GTEST_SKIP() << "no CUDA device";
    Random random(21);
    std::vector<Tensor> tensors;
    std::vector<test::NamedTensor> stored;
    for (const LinearRows& layer : kLayers) {
      for (const auto& [kind, shape] :
           {std::pair{".weight", Shape{layer.out, kIn}}, std::pair{".bias", Shape{layer.out}}}) {
        stored.push_back(
            {str(layer.name, kind), tensors.emplace_back(random_tensor(random, DType::kBF16, shape, 0.1))});
      }
    }
    test::write_safetensors(directory_ / "model.safetensors", stored);
  }

  // Of random rows, q, k and v in columns of one tensor.
  Tensor products(int64_t rows, Place place, Determinism determinism, HasBias bias) const {
    DeviceRuntime& device = testing_support::gpu();
    Checkpoint checkpoint = Checkpoint::open(directory_.path());
    checkpoint.place_on(device);
    const WeightScope scope(checkpoint);
    if (place == Place::kTogether) place_together(scope, kLayers, kIn, bias);
    const LayerContext context{.ops = &cuda_module().ops(GetParam()),
                               .op = {.determinism = determinism, .stream = device.stream()},
                               .dtype = DType::kBF16,
                               .runtime = &device};
    Random random(22);
    const Tensor x = copied_to(device, random_tensor(random, DType::kBF16, {rows, kIn})),
                 y = context.make({rows, kAll});
    FusedLinearArgs args{.x = x, .num_products = 3};
    std::array<Linear, 3> linears;
    for (int64_t i = 0, at = 0; i < 3; at += kLayers[static_cast<size_t>(i)].out, ++i) {
      const LinearRows& layer = kLayers[static_cast<size_t>(i)];
      linears[static_cast<size_t>(i)] = Linear(scope, layer.name, layer.out, kIn, bias);
      args.products[static_cast<size_t>(i)] =
          linears[static_cast<size_t>(i)].product(y.view().narrow(1, at, at + layer.out));
    }
    fused_linear(context, args);
    Tensor host(y.dtype(), y.shape());
    device.copy_to_host(host.data(), y.data(), static_cast<size_t>(y.bytes()));
    return host;
  }

  test::TempDir directory_;
};

// A row, the most that skinny_gemm takes, a step of blocks.
TEST_P(LinearOnDevice, OneProductOfWeightsThatLieTogetherIsTheProductsOfWeightsApart) {
  for (const int64_t rows : {1, 16, 17, 150, 683}) {
    for (const HasBias bias : {HasBias::kNo, HasBias::kYes}) {
      SCOPED_TRACE(rows);
      const auto run = [&](Place place, Determinism determinism) { return products(rows, place, determinism, bias); };
      EXPECT_TRUE(bit_equal(run(Place::kTogether, Determinism::kStrict), run(Place::kApart, Determinism::kStrict)));
      EXPECT_TRUE(all_close(run(Place::kTogether, Determinism::kFast), run(Place::kApart, Determinism::kFast),
                            dense_tolerance(DType::kBF16)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, LinearOnDevice, testing::ValuesIn(kCudaSets),
                         [](const auto& set) { return std::string(set.param); });

}  // namespace
}  // namespace headrace::testing_support
