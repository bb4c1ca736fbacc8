// The fake device is one: it works behind the host, and what a capture records runs with the graph alone.
#include "bench/fake_device.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "headrace/ops/cpu/dispatch.h"
#include "support/refusal.h"

namespace headrace::bench {
namespace {

using testing_support::refusal_of;

class FakeDeviceTest : public testing::Test {
 protected:
  Tensor copy_of(const std::vector<float>& values) {
    Tensor there(DType::kF32, {1, std::ssize(values)}, device_);
    device_.copy_to_device(there.data(), values.data(), values.size() * sizeof(float));
    return there;
  }
  std::vector<float> on_host(const Tensor& there) {
    std::vector<float> values(static_cast<size_t>(there.numel()));
    device_.copy_to_host(values.data(), there.data(), values.size() * sizeof(float));
    return values;
  }
  void add(const Tensor& x, const Tensor& y, const Tensor& out) {
    device_.ops().pointwise({.kind = PointwiseKind::kAdd, .x = x, .y = y, .out = out}, {.stream = device_.stream()});
  }

  FakeDevice device_{cpu::select_kernel_set()};
};

TEST_F(FakeDeviceTest, WorksWhenTheHostWaitsAndNoFurther) {
  const Tensor one = copy_of({1, 2}), sum = copy_of({0, 0});
  auto* const shared = static_cast<float*>(device_.allocate_shared(2 * sizeof(float)));
  const auto first = device_.make_event(), second = device_.make_event();
  for (DeviceEvent* event : {first.get(), second.get()}) {
    add(sum, one, sum);
    device_.copy_on_device(shared, sum.data(), 2 * sizeof(float));
    event->set();
  }
  EXPECT_EQ(shared[1], 0) << "not waited for";
  first->wait();
  EXPECT_EQ(shared[1], 2) << "the first alone";
  first->wait();
  EXPECT_EQ(shared[1], 2);
  second->wait();
  EXPECT_EQ(shared[1], 4);
  device_.release_shared(shared, 2 * sizeof(float));
}

TEST_F(FakeDeviceTest, KeepsItsOwnCopyOfWhatTheHostGave) {
  std::vector<float> values = {5};
  const Tensor there(DType::kF32, {1}, device_);
  device_.copy_to_device(there.data(), values.data(), sizeof(float));
  values[0] = 6;
  EXPECT_EQ(on_host(there), std::vector<float>{5});
}

TEST_F(FakeDeviceTest, FreshMemoryHoldsNoNumbers) {
  { const Tensor before = copy_of({1}); }
  const Tensor fresh(DType::kF32, {1, 1}, device_);  // the same memory
  EXPECT_TRUE(std::isnan(on_host(fresh)[0]));
}

TEST_F(FakeDeviceTest, GraphsRunWhatWasCapturedOnWhatIsThereThen) {
  const Tensor x = copy_of({1, 2}), y = copy_of({10, 20}), out = copy_of({0, 0});
  device_.begin_capture();
  {
    const Tensor between(DType::kF32, {1, 2}, device_);
    add(x, y, between);
    add(between, y, out);
  }
  const auto graph = device_.end_capture();
  const Tensor other = copy_of({7, 7});  // not in the graph's memory
  EXPECT_EQ(on_host(out), (std::vector<float>{0, 0})) << "a capture runs nothing";
  graph->launch();
  EXPECT_EQ(on_host(out), (std::vector<float>{21, 42}));
  const std::vector<float> later = {3, 4};
  device_.copy_to_device(x.data(), later.data(), 2 * sizeof(float));
  graph->launch();
  EXPECT_EQ(on_host(out), (std::vector<float>{23, 44}));
  EXPECT_EQ(on_host(other), (std::vector<float>{7, 7}));
}

TEST_F(FakeDeviceTest, KernelsReadSpansOnTheDevice) {
  // The state after two of three tokens: on the host the span has three.
  const Tensor x = copy_of({1, 2, 3}), weight = copy_of({0, 1}), out = copy_of({0, 0, 0}), state = copy_of({0});
  const std::vector<KeySpan> host = {{.q_len = 3}}, there = {{.q_len = 2}};
  const std::vector<StateSlots> slots = {{kNoState, 0}};
  const Tensor spans(DType::kU8, {sizeof(KeySpan)}, device_), places(DType::kU8, {sizeof(StateSlots)}, device_);
  device_.copy_to_device(spans.data(), there.data(), sizeof(KeySpan));
  device_.copy_to_device(places.data(), slots.data(), sizeof(StateSlots));
  const DeviceMetadata metadata{.spans = static_cast<const KeySpan*>(spans.data()),
                                .state_slots = static_cast<const StateSlots*>(places.data())};
  const auto rows = [](const Tensor& t) { return t.view().reshape({t.numel(), 1}); };
  CausalConv1dArgs args{.x = rows(x), .weight = weight, .state = state.view().reshape({1, 1, 1})};
  args.spans = host, args.slots = slots, args.on_device = &metadata, args.out = rows(out);
  device_.ops().causal_conv1d(args, {.stream = device_.stream()});
  EXPECT_EQ(on_host(state), std::vector<float>{2});
  args.on_device = nullptr;
  EXPECT_EQ(refusal_of([&] { device_.ops().causal_conv1d(args, {.stream = device_.stream()}); }).sentence,
            "fake device: the batch lies on the host");
}

TEST_F(FakeDeviceTest, ACaptureRefusesWaitsAndCopiesOfTheHost) {
  const Tensor there = copy_of({1});
  const auto event = device_.make_event();
  float host = 0;
  device_.begin_capture();
  const auto refused = [](const auto& call) { return refusal_of(call).sentence; };
  EXPECT_EQ(refused([&] { device_.synchronize(); }), "fake device: a wait cannot be captured");
  EXPECT_EQ(refused([&] { event->wait(); }), "fake device: a wait cannot be captured");
  EXPECT_EQ(refused([&] { device_.copy_to_host(&host, there.data(), sizeof host); }),
            "fake device: a copy to the host cannot be captured");
  EXPECT_EQ(refused([&] { device_.copy_to_device(there.data(), &host, sizeof host); }),
            "fake device: a copy from the host cannot be captured");
  EXPECT_EQ(refused([&] { device_.begin_capture(); }), "fake device: a capture cannot be captured");
  device_.end_capture();
  EXPECT_EQ(on_host(there), std::vector<float>{1});
}

// As on a GPU, where the launch succeeds.
TEST_F(FakeDeviceTest, AKernelsErrorIsThrownAtTheWait) {
  const Tensor table = copy_of({1, 2}), out = copy_of({0, 0});
  const Tensor ids(DType::kI32, {1}, device_);  // -1, as all fresh memory
  device_.ops().embedding({.ids = ids, .table = table, .out = out}, {.stream = device_.stream()});
  EXPECT_THROW(device_.synchronize(), Error);
  EXPECT_EQ(on_host(out), (std::vector<float>{0, 0})) << "and later work runs";
}

TEST_F(FakeDeviceTest, HasNoKernelsOfExperts) {
  EXPECT_EQ(refusal_of([&] { device_.ops().expert_mlp({}, {.stream = device_.stream()}); }).code,
            ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace headrace::bench
