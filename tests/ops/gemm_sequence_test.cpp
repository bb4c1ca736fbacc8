// GEMM sequences: the plan of the kernel that runs several GEMMs of small M, and its results.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <future>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "headrace/core/device_runtime.h"
#include "headrace/ops/cuda/gemm/sm90/gemm_sequence_hand_over.h"
#include "headrace/ops/cuda/gemm/sm90/gemm_sequence_plan.h"
#include "headrace/ops/cuda_module.h"
#include "headrace/ops/reference/reference_ops.h"
#include "support/all_close.h"
#include "support/device_mirror.h"
#include "support/gpu.h"
#include "support/random.h"

namespace headrace::testing_support {
namespace {

constexpr Tolerance kRounded{.abs = 1.6e-2, .rel = 1.6e-2};  // one rounding to bfloat16 of sums of sizes up to 4

TEST(GemmSequencePlan, KeepsXWholeWhileItIsSmallAndSpendsTheRestOnTheRing) {
  using cuda::GemmSequencePlan;
  const cuda::GemmSequenceStep small[] = {{2048, false}, {1024, true}, {3584, false}, {1024, true}};
  const GemmSequencePlan one = plan_gemm_sequence(1, small, 4);
  EXPECT_EQ(one.slices, 4);  // of seven, for each of two teams
  EXPECT_EQ(one.norm_slices, 2);
  EXPECT_EQ(one.slots, 11);
  const cuda::GemmSequenceStep large[] = {{4096, false}, {2560, true}, {9728, false}, {2560, true}};
  const GemmSequencePlan four = plan_gemm_sequence(4, large, 4);
  EXPECT_EQ(four.slices, 4);  // of 19, for each of two teams
  for (int rows = 1; rows <= GemmSequencePlan::kMostRows; ++rows) {
    const GemmSequencePlan plan = plan_gemm_sequence(rows, large, 4);
    EXPECT_GE(plan.slots, GemmSequencePlan::kFewestSlots) << rows;
    EXPECT_LE(plan.shared_bytes(), GemmSequencePlan::kSharedBytes) << rows;
  }
}

TEST(GemmSequencePlan, RefusesWhatDoesNotFit) {
  const cuda::GemmSequenceStep plain{12288, false}, normed{12288, true};
  const cuda::GemmSequenceStep long_normed{20480, true};
  EXPECT_GT(cuda::plan_gemm_sequence(4, &plain, 1).slots, 0);
  EXPECT_GT(cuda::plan_gemm_sequence(4, &normed, 1).slots, 0);
  EXPECT_EQ(cuda::plan_gemm_sequence(4, &long_normed, 1).slots, 0);  // 160 KiB of x and 40 of its norm's weight
  EXPECT_EQ(cuda::plan_gemm_sequence(5, &plain, 1).slots, 0);
}

// The layers that were measured: one of 4 billion parameters gains, one of 0.8 billion does not.
// Logits are float32, so a head is a sequence of its own.
TEST(GemmSequencePlan, TakesLargeWeights) {
  constexpr bool kAsX = true;
  for (const int64_t bytes : {2560 * 4096 * 2, 2 * 9728 * 2560 * 2, 2560 * 9728 * 2, 6144 * 2560 * 2}) {
    EXPECT_TRUE(cuda::gemm_sequence_pays(bytes, kAsX)) << bytes;
    EXPECT_FALSE(cuda::gemm_sequence_pays(bytes, !kAsX)) << bytes;
  }
  for (const int64_t bytes : {1024 * 2048 * 2, 2 * 3584 * 1024 * 2, 1024 * 3584 * 2, 8224 * 1024 * 2}) {
    EXPECT_FALSE(cuda::gemm_sequence_pays(bytes, kAsX)) << bytes;
  }
  EXPECT_TRUE(cuda::gemm_sequence_pays(int64_t{151936} * 2560 * 2, !kAsX));
}

// A decoder layer from behind its attention to before the next one's, every result apart.
struct Layer {
  Tensor a, x, out, norm1, gate, up, norm2, down, q, k, bias;  // weights, and inputs a and x
  Tensor after_out, inner, after_down, y_q, y_k;

  Layer(DType type, int64_t rows, int64_t hidden, int64_t heads, int64_t inner_size) {
    Random random(static_cast<uint64_t>(11 + rows));
    const auto make = [&](const Shape& shape, double size) { return random_tensor(random, type, shape, size); };
    a = make({rows, heads}, 1), x = make({rows, hidden}, 1);
    out = make({hidden, heads}, 0.03), norm1 = make({hidden}, 1), norm2 = make({hidden}, 0.1);
    gate = make({inner_size, hidden}, 0.03), up = make({inner_size, hidden}, 0.03);
    down = make({hidden, inner_size}, 0.03);
    q = make({70, hidden}, 0.03), k = make({3, hidden}, 0.03), bias = make({3}, 1);
    after_out = Tensor(type, {rows, hidden}), inner = Tensor(type, {rows, inner_size});
    after_down = Tensor(type, {rows, hidden}), y_q = Tensor(type, {rows, 70}), y_k = Tensor(type, {rows, 3});
    for (Tensor* t : results()) poison(*t);
  }
  std::array<Tensor*, 5> results() { return {&after_out, &inner, &after_down, &y_q, &y_k}; }
  std::array<const Tensor*, 5> results() const { return {&after_out, &inner, &after_down, &y_q, &y_k}; }
  std::array<FusedLinearArgs, 4> steps() const {
    std::array<FusedLinearArgs, 4> s;
    s[0] = {.x = a, .products = {{{out, {}, after_out}}}, .residual = x};
    s[1] = {.x = after_out,
            .norm_weight = norm1,
            .products = {{{gate, {}, inner}, {up, {}, {}}}},
            .num_products = 2,
            .combine = FusedLinearArgs::Combine::kSiluMul};
    s[2] = {.x = inner, .products = {{{down, {}, after_down}}}, .residual = after_out};
    s[3] = {.x = after_down,
            .norm_weight = norm2,
            .norm_form = WeightForm::kPlusOne,
            .products = {{{q, {}, y_q}, {k, bias, y_k}}},
            .num_products = 2};
    return s;
  }
};

std::vector<FusedLinearArgs> all_steps(const Layer& layer) {
  const auto steps = layer.steps();
  return {steps.begin(), steps.end()};
}

using cuda::After;
using cuda::HandOver;

TEST(HandOver, StepsOfALayerGetTheirXFromTheStepBefore) {
  const Layer layer(DType::kBF16, 4, 1032, 264, 520);
  const auto steps = cuda::plan_hand_over(all_steps(layer)).steps;
  const std::array places = {HandOver::kNotHanded, 0, 4 * 1032 * 2, 4 * (1032 + 520) * 2};
  for (size_t i = 0; i < places.size(); ++i) {
    EXPECT_EQ(steps[i].x_at, places[i]) << i;
    EXPECT_EQ(steps[i].after, i == 0 ? After::kSeen : After::kAsked) << i;
  }
}

TEST(HandOver, MeetsForWhatOtherBlocksWroteAndAStepTouches) {
  const Layer layer(DType::kBF16, 2, 264, 520, 264);
  const auto after = [](const std::vector<FusedLinearArgs>& sequence, size_t step) {
    return cuda::plan_hand_over(sequence).steps[step].after;
  };
  const auto steps = all_steps(layer);
  EXPECT_EQ(after(steps, 2), After::kAsked);  // its residual is what the same threads wrote
  auto changed = steps;
  changed[2].x = layer.a;  // not the last result
  EXPECT_EQ(after(changed, 2), After::kSeen);
  changed = steps;
  changed[2].residual = layer.inner;  // a combined product's: other threads
  EXPECT_EQ(after(changed, 2), After::kSeen);
  changed = steps;
  changed[2].products[0].y = layer.after_out;  // the same threads again
  EXPECT_EQ(after(changed, 2), After::kAsked);
  changed[1].products[0].y = layer.after_out;  // x in place
  EXPECT_EQ(after(changed, 1), After::kSeen);
  changed = steps;
  changed[3].products[0].y = layer.inner.view().slice(0, 1);  // written two steps before
  EXPECT_EQ(after(changed, 3), After::kEarlierSeen);
  EXPECT_EQ(cuda::plan_hand_over(changed).steps[3].x_at, cuda::plan_hand_over(steps).steps[3].x_at);
  changed = steps;
  changed[0].num_products = 2;  // two results
  changed[0].products[1] = changed[0].products[0];
  EXPECT_EQ(after(changed, 1), After::kSeen);
}

TEST(HandOver, LargeResultsAreNotHandedOver) {
  const Tensor a(DType::kBF16, {8, 64}), x(DType::kBF16, {8, 12000}), y(DType::kBF16, {8, 10000});
  const Tensor first(DType::kBF16, {12000, 64}), second(DType::kBF16, {10000, 12000}), third(DType::kBF16, {64, 10000});
  const std::vector<FusedLinearArgs> sequence = {{.x = a, .products = {{{first, {}, x}}}},
                                                 {.x = x, .products = {{{second, {}, y}}}},
                                                 {.x = y, .products = {{{third, {}, a}}}}};
  const auto steps = cuda::plan_hand_over(sequence).steps;
  EXPECT_EQ(steps[1].x_at, 0);
  EXPECT_EQ(steps[2].x_at, HandOver::kNotHanded);
  EXPECT_EQ(steps[2].after, After::kSeen);
}

class GemmSequence : public testing::Test {
 protected:
  void SetUp() override {
    if (mirrored_cuda_ops() == nullptr) GTEST_SKIP() << "no CUDA device";
    device_ = &testing_support::gpu();
    ops_ = &cuda_module().ops("cuda");
  }
  // Leaves only the sequence kernel for calls that it can run, even where it is slower.
  OpContext context(Determinism determinism = Determinism::kFast) const {
    return {.determinism = determinism,
            .stream = device_->stream(),
            .leave_out = "gemv,small_m,skinny,swiglu,batch_invariant_sm90,batch_invariant_sm80,cublaslt"};
  }
  Tensor on_host(const TensorView& x) const {
    Tensor host(x.dtype(), x.shape());
    device_->copy_to_host(host.data(), x.data(), static_cast<size_t>(x.bytes()));
    return host;
  }
  // The same layer on the device.
  Layer on_device(Layer host) const {
    for (Tensor* t : {&host.a, &host.x, &host.out, &host.norm1, &host.gate, &host.up, &host.norm2, &host.down, &host.q,
                      &host.k, &host.bias, &host.after_out, &host.inner, &host.after_down, &host.y_q, &host.y_k}) {
      *t = copied_to(*device_, std::move(*t));
    }
    return host;
  }
  // Runs steps [begin, end) of the layer: in one call of the op, or each in one of its own.
  enum class Calls : uint8_t { kOne, kEach };
  void run(const Layer& layer, int begin = 0, int end = 4, Calls calls = Calls::kOne) const {
    const auto steps = layer.steps();
    const int length = calls == Calls::kOne ? end - begin : 1;
    for (int i = begin; i < end; i += length) {
      ops_->gemm_sequence({&steps[static_cast<size_t>(i)], static_cast<size_t>(length)}, context());
    }
  }
  // New values for what a sequence from step `begin` on reads first, the same for all `layers`.
  void give(Random& random, int begin, const std::vector<const Layer*>& layers) const {
    const auto x_of = [begin](const Layer* layer) { return layer->steps()[static_cast<size_t>(begin)].x; };
    const TensorView x = x_of(layers[0]);
    const Tensor values = random_tensor(random, x.dtype(), x.shape(), 1);
    for (const Layer* layer : layers) {
      device_->copy_to_device(x_of(layer).data(), values.data(), static_cast<size_t>(values.bytes()));
    }
  }
  void expect_same(const Layer& got, const Layer& want, const std::string& what) const {
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_TRUE(bit_equal(on_host(*got.results()[i]), on_host(*want.results()[i]))) << what << ", result " << i;
    }
  }
  DeviceRuntime* device_ = nullptr;  // not owned
  const OpSet* ops_ = nullptr;
};

Tensor normed(const TensorView& x, const TensorView& weight, WeightForm form) {
  Tensor out(x.dtype(), x.shape());
  reference::rms_norm({.x = x, .weight = weight, .weight_form = form, .out = out}, {});
  return out;
}
Tensor product(const TensorView& x, const TensorView& weight, const TensorView& bias = {}) {
  Tensor y(DType::kF32, {x.dim(0), weight.dim(0)});
  reference::linear({.x = x, .weight = weight, .bias = bias, .y = y}, {});
  return y;
}
Tensor joined(PointwiseKind kind, DType type, const TensorView& x, const TensorView& y) {
  Tensor out(type, x.shape());
  reference::pointwise({.kind = kind, .x = x, .y = y, .out = out}, {});
  return out;
}

// Every step from what the device had before it.
void expect_matches(const Layer& layer, const std::array<Tensor, 5>& got, const std::string& what) {
  const DType type = layer.x.dtype();
  const auto& [after_out, inner, after_down, y_q, y_k] = got;
  EXPECT_TRUE(all_close(after_out, joined(PointwiseKind::kAdd, type, layer.x, product(layer.a, layer.out)), kRounded))
      << what;
  const Tensor n1 = normed(after_out, layer.norm1, WeightForm::kPlain);
  EXPECT_TRUE(
      all_close(inner, joined(PointwiseKind::kSiluMul, type, product(n1, layer.gate), product(n1, layer.up)), kRounded))
      << what;
  EXPECT_TRUE(all_close(after_down, joined(PointwiseKind::kAdd, type, after_out, product(inner, layer.down)), kRounded))
      << what;
  const Tensor n2 = normed(after_down, layer.norm2, WeightForm::kPlusOne);
  EXPECT_TRUE(all_close(y_q, product(n2, layer.q), kRounded)) << what;
  EXPECT_TRUE(all_close(y_k, product(n2, layer.k, layer.bias), kRounded)) << what;
}

// Sizes that are no multiples of tiles, chunks, slices or blocks, and whole chunks; fewer rows than there are blocks; x
// that does not fit whole.
TEST_F(GemmSequence, EveryStepMatchesTheOracle) {
  struct Case {
    int64_t rows, hidden, heads, inner;
    DType type = DType::kBF16;
  };
  for (const Case& c :
       {Case{1, 1032, 520, 1544}, Case{1, 264, 2056, 200}, Case{2, 520, 264, 2056, DType::kF16},
        Case{3, 264, 1032, 3080}, Case{4, 1032, 264, 520}, Case{2, 136, 72, 6152}, Case{3, 264, 2056, 136},
        Case{4, 264, 136, 3592}, Case{4, 1032, 520, 264, DType::kF16}, Case{4, 72, 40, 9000}, Case{1, 64, 1024, 192},
        Case{4, 640, 4608, 1088}, Case{3, 576, 3648, 1024}, Case{3, 1536, 128, 4672, DType::kF16}}) {
    const Layer host(c.type, c.rows, c.hidden, c.heads, c.inner);
    const Layer layer = on_device(Layer(c.type, c.rows, c.hidden, c.heads, c.inner));
    run(layer);
    expect_matches(host,
                   {on_host(layer.after_out), on_host(layer.inner), on_host(layer.after_down), on_host(layer.y_q),
                    on_host(layer.y_k)},
                   std::to_string(c.rows) + " rows, hidden " + std::to_string(c.hidden));
  }
}

// Rows of a block that take several rounds, over an x that comes slice by slice in each; batch-invariant GEMMs of
// another kernel are the judge, which the oracle judges elsewhere.
TEST_F(GemmSequence, SeveralRoundsReadXAgain) {
  struct Case {
    int64_t rows, in;
  };
  for (const Case& c : {Case{2, 3080}, Case{4, 3584}, Case{3, 4616}, Case{4, 4672}}) {
    Random random(5);
    const auto make = [&](const Shape& shape) {
      return copied_to(*device_, random_tensor(random, DType::kBF16, shape, 0.1));
    };
    const Tensor x = make({c.rows, c.in}), w = make({9000, c.in});
    const Tensor y(DType::kF32, {c.rows, 9000}, *device_), want(DType::kF32, {c.rows, 9000}, *device_);
    ops_->linear({.x = x, .weight = w, .y = y}, context());
    ops_->linear({.x = x, .weight = w, .y = want},
                 {.determinism = Determinism::kStrict, .stream = device_->stream(), .leave_out = "sequence"});
    EXPECT_TRUE(bit_equal(on_host(y), on_host(want))) << c.rows << " rows of " << c.in;
  }
}

// In both modes a sequence has the bits of batch-invariant mode among more rows, norms included.
TEST_F(GemmSequence, RowsHaveTheBitsOfStrictModeAmongMoreRows) {
  struct Case {
    int64_t hidden, heads, inner;
    DType type = DType::kBF16;
  };
  constexpr int64_t kMany = 40;
  const OpContext strict{.determinism = Determinism::kStrict, .stream = device_->stream()};
  for (const Case& c :
       {Case{1032, 520, 2056}, Case{2568, 1032, 1544, DType::kF16}, Case{72, 2056, 200}, Case{4608, 264, 1160}}) {
    const Layer many = on_device(Layer(c.type, kMany, c.hidden, c.heads, c.inner));
    for (const FusedLinearArgs& step : many.steps()) ops_->fused_linear(step, strict);
    for (const int64_t rows : {1, 2, 3, 4}) {
      const Layer few = on_device(Layer(c.type, kMany, c.hidden, c.heads, c.inner));
      auto steps = few.steps();
      for (FusedLinearArgs& step : steps) {
        for (TensorView* x : {&step.x, &step.residual, &step.products[0].y, &step.products[1].y}) {
          if (*x) *x = x->slice(0, rows);
        }
      }
      ops_->gemm_sequence(steps, context(rows % 2 == 0 ? Determinism::kFast : Determinism::kStrict));
      for (size_t i = 0; i < 5; ++i) {
        EXPECT_TRUE(bit_equal(on_host(few.results()[i]->view().slice(0, rows)),
                              on_host(many.results()[i]->view().slice(0, rows))))
            << rows << " rows, hidden " << c.hidden << ", result " << i;
      }
    }
  }
}

TEST_F(GemmSequence, HasTheSameBitsHoweverItIsCut) {
  const auto make = [this] { return on_device(Layer(DType::kBF16, 3, 1032, 520, 2056)); };
  const Layer whole = make(), each = make(), halves = make();
  run(whole);
  run(each, 0, 4, Calls::kEach);
  run(halves, 0, 1), run(halves, 1, 4);
  expect_same(each, whole, "each step in a call of its own");
  expect_same(halves, whole, "one step and three");
}

// One of a device's runtimes has the grid barrier and runs a sequence as one kernel; another runs it call by call. Both
// at once, neither waits for the other, and their bits are the same.
TEST_F(GemmSequence, TwoRuntimesOnADeviceRunSequencesAtOnce) {
  constexpr int kTimes = 400, kQueued = 40;
  const std::unique_ptr<DeviceRuntime> other = cuda_module().make_runtime(0);
  const auto repeated = [this](DeviceRuntime& device, const OpContext& there, const Layer& layer) {
    for (int i = 0; i < kTimes; ++i) {
      ops_->gemm_sequence(layer.steps(), there);
      if (i % kQueued == kQueued - 1) device.synchronize();
    }
  };
  const auto make = [this] { return on_device(Layer(DType::kBF16, 3, 2568, 1032, 4616)); };
  const Layer alone = make(), first = make();
  run(alone);
  DeviceRuntime* const one = std::exchange(device_, other.get());
  const OpContext there = context();
  const Layer second = make();
  device_ = one;
  std::future<void> beside = std::async(std::launch::async, [&] { repeated(*other, there, second); });
  repeated(*one, context(), first);
  beside.get();
  expect_same(first, alone, "the runtime with the grid barrier");
  expect_same(second, alone, "the other runtime");
}

// The op takes any number of calls of any M. Calls that other kernels run come between those of sequences.
TEST_F(GemmSequence, RunsAllCallsInOrderWhateverTheirKernels) {
  const auto make = [this](int64_t rows) { return on_device(Layer(DType::kBF16, rows, 1032, 520, 2056)); };
  const std::array together = {make(3), make(20), make(2)}, apart = {make(3), make(20), make(2)};
  std::vector<FusedLinearArgs> calls;
  for (const Layer& layer : together) {
    for (const FusedLinearArgs& step : layer.steps()) calls.push_back(step);
  }
  ops_->gemm_sequence(calls, context());
  for (const Layer& layer : apart) run(layer, 0, 4, Calls::kEach);
  for (size_t i = 0; i < together.size(); ++i) expect_same(together[i], apart[i], "layer " + std::to_string(i));
  const Layer chosen = make(3), alone = make(3);
  const auto steps = chosen.steps();
  ops_->gemm_sequence(steps, {.stream = device_->stream()});
  for (const FusedLinearArgs& step : alone.steps()) ops_->fused_linear(step, {.stream = device_->stream()});
  expect_same(chosen, alone, "the fastest kernels");
}

// Two layers, of which the second adds to the first's input: every replay goes on from the last.
TEST_F(GemmSequence, ReplaysOfAGraphGoOnWhereTheLastEnded) {
  const auto make = [this] { return on_device(Layer(DType::kBF16, 2, 520, 264, 1032)); };
  const auto step = [this](const Layer& layer) {
    run(layer);
    ops_->fused_linear({.x = layer.inner, .products = {{{layer.down, {}, layer.x}}}, .residual = layer.x}, context());
  };
  const Layer eager = make(), replayed = make();
  for (int i = 0; i < 4; ++i) step(eager), device_->synchronize();
  step(replayed);
  device_->begin_capture();
  step(replayed);
  const auto graph = device_->end_capture();
  for (int i = 0; i < 3; ++i) graph->launch();
  EXPECT_TRUE(bit_equal(on_host(replayed.x), on_host(eager.x)));
  EXPECT_TRUE(bit_equal(on_host(replayed.y_q), on_host(eager.y_q)));
}

// Sequences of one to four steps in any order and of two sizes, each with values of its own where one before it had
// others: nobody may take those for the new ones. Steps alone, with waits between them, are the judge.
TEST_F(GemmSequence, ValuesOfEarlierLaunchesAreNotTaken) {
  const auto small = [this] { return on_device(Layer(DType::kBF16, 3, 264, 520, 1032)); };
  const auto large = [this] { return on_device(Layer(DType::kBF16, 4, 1032, 520, 2056)); };
  const std::array<Layer, 2> together = {small(), large()}, alone = {small(), large()};
  for (const Layer& layer : alone) run(layer, 0, 4, Calls::kEach);
  for (const Layer& layer : together) run(layer);
  Random random(3);
  for (int round = 0; round < 48; ++round) {
    const size_t size = static_cast<size_t>(round / 3 % 2);
    const Layer &got = together[size], &want = alone[size];
    const int begin = round % 4, end = begin + 1 + round / 4 % (4 - begin);
    give(random, begin, {&got, &want});
    run(got, begin, end);
    run(want, begin, end, Calls::kEach);
    expect_same(got, want, "round " + std::to_string(round));
  }
}

// A graph of a sequence of four steps and one of three, replayed over other values.
TEST_F(GemmSequence, ReplaysTakeNewValues) {
  const auto make = [this] { return on_device(Layer(DType::kF16, 4, 576, 264, 1024)); };
  const Layer replayed = make(), alone = make();
  const auto step = [this](const Layer& layer, Calls calls) {
    run(layer, 0, 4, calls);
    run(layer, 1, 4, calls);
  };
  step(replayed, Calls::kOne);
  device_->synchronize();
  device_->begin_capture();
  step(replayed, Calls::kOne);
  const auto graph = device_->end_capture();
  Random random(4);
  for (int round = 0; round < 25; ++round) {
    give(random, 0, {&replayed, &alone});
    graph->launch();
    step(alone, Calls::kEach);
    expect_same(replayed, alone, "round " + std::to_string(round));
  }
}

// The last step's results take the place of the second's.
TEST_F(GemmSequence, ResultsMayLieWhereEarlierOnesLay) {
  const auto make = [this] { return on_device(Layer(DType::kBF16, 4, 1032, 520, 2056)); };
  const Layer apart = make(), shared = make();
  run(apart);
  const TensorView place = shared.inner.view().reshape({4 * 2056}).slice(0, 4 * 70).reshape({4, 70});
  auto steps = shared.steps();
  steps[3].products[0].y = place;
  ops_->gemm_sequence(steps, context());
  EXPECT_TRUE(bit_equal(on_host(place), on_host(apart.y_q)));
  EXPECT_TRUE(bit_equal(on_host(shared.after_down), on_host(apart.after_down)));
}

// A value that is no number has come as well as any other.
TEST_F(GemmSequence, NaNIsHandedOver) {
  for (const DType type : {DType::kBF16, DType::kF16}) {
    Layer host(type, 4, 264, 520, 520);
    set_element(host.a, 1, std::numeric_limits<double>::quiet_NaN());
    set_element(host.a, 2 * 520 + 3, -std::numeric_limits<double>::infinity());
    const Layer layer = on_device(std::move(host));
    run(layer);
    const Tensor y = on_host(layer.y_q);
    for (int64_t i = 0; i < y.numel(); ++i) {
      const int64_t row = i / 70;
      EXPECT_EQ(std::isnan(element_as_double(y, i)), row == 0 || row == 2) << row;
    }
  }
}

}  // namespace
}  // namespace headrace::testing_support
