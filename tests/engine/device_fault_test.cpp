// A device that fails or is full: what the engine says, and that nothing half-alive is left.
#include <gtest/gtest.h>

#include <functional>

#include "headrace/engine/engine.h"
#include "support/host_memory.h"
#include "support/refusal.h"

namespace headrace {
namespace {

// Answers until its device fails.
class FailingModel final : public Model {
 public:
  explicit FailingModel(int good_passes, const GDNPoolConfig& gdn = {}) : left_(good_passes) {
    info_ = {.architecture = "failing",
             .vocab_size = 8,
             .context_length = 64,
             .num_layers = 1,
             .kv_groups = {{{1, 4, 4}, {0}}},
             .full_attn_layer_ids = {0},
             .dtype = DType::kF32};
    info_.num_gdn_layers = gdn.num_layers;
    info_.gdn = gdn;
  }
  const ModelInfo& info() const override { return info_; }
  Tensor forward(const ForwardBatch& batch) const override {
    if (left_-- == 0) throw Error(ErrorCode::kCuda, "cuda: waiting for the device failed: an illegal memory access");
    return Tensor::zeros(DType::kF32, {static_cast<int64_t>(batch.logits_rows.size()), 8});
  }

 private:
  ModelInfo info_;
  mutable int left_;
};

// A device with little memory.
class ScarceRuntime final : public testing_support::HostMemory {
 public:
  Device device() const override { return {}; }
  void* allocate(size_t bytes) override {
    HR_REQUIRE(bytes < 4096, ErrorCode::kOutOfMemory, "cuda:0: could not allocate ", bytes, " bytes; 7 of 9 are free");
    return HostMemory::allocate(bytes);
  }
};

std::string cuda_error_of(const std::function<void()>& call) {
  const auto refused = testing_support::refusal_of(call);
  EXPECT_EQ(refused.code, ErrorCode::kCuda);
  return refused.sentence;
}

EngineConfig config() {
  return {.runner = {.num_pages = 8, .page_size = 16, .max_tokens = 32}, .max_requests = 4, .max_context_len = 64};
}

TEST(DeviceFault, FailsEveryRequestAndTheEngineForGood) {
  const FailingModel model(2);
  Engine engine(model, config());
  engine.add({1, 2}, {.max_tokens = 9, .temperature = 0});
  engine.add({3, 4, 5}, {.max_tokens = 9, .temperature = 0});
  engine.step();
  engine.step();
  EXPECT_FALSE(engine.fault());
  const std::string reason = "cuda: waiting for the device failed: an illegal memory access";
  EXPECT_EQ(cuda_error_of([&] { engine.step(); }), reason);
  EXPECT_EQ(engine.fault(), reason);
  EXPECT_TRUE(engine.idle());
  EXPECT_EQ(cuda_error_of([&] { engine.step(); }).find(reason), 0u);
  EXPECT_EQ(cuda_error_of([&] { engine.add({1}, {.max_tokens = 1}); }).find(reason), 0u);
}

TEST(DeviceFault, OfAScoreIsRememberedToo) {
  const FailingModel model(0);
  Engine engine(model, config());
  const std::string reason = "cuda: waiting for the device failed: an illegal memory access";
  EXPECT_EQ(cuda_error_of([&] { engine.score({1, 2, 3}); }), reason);
  EXPECT_EQ(engine.fault(), reason);
  EXPECT_TRUE(engine.idle());
  EXPECT_EQ(cuda_error_of([&] { engine.add({1}, {.max_tokens = 1}); }).find(reason), 0u);
  EXPECT_EQ(cuda_error_of([&] { engine.score({1, 2, 3}); }).find(reason), 0u);
}

TEST(DeviceFault, AnotherErrorOfAStepIsNotTheDevices) {
  const FailingModel model(9);
  Engine engine(model, config());
  EXPECT_THROW(engine.add({99}, {.max_tokens = 1}), Error);
  EXPECT_FALSE(engine.fault());
  engine.add({1}, {.max_tokens = 1, .temperature = 0});
  EXPECT_EQ(engine.step().size(), 1u);
}

TEST(DeviceFault, AFullDeviceSaysWhatIsNeededWhatIsThereAndWhatToTry) {
  const FailingModel model(9);
  ScarceRuntime scarce;
  const auto refused = testing_support::refusal_of(
      [&] { const ModelRunner runner(model, {.runtime = &scarce, .num_pages = 100, .page_size = 16}); });
  EXPECT_EQ(refused.code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(refused.sentence,
            "a KV cache of 1600 tokens needs 51.7 kB: cuda:0: could not allocate 25856 bytes; 7 of 9 are "
            "free; try a smaller max_model_len, or a smaller cache (kv_cache_memory_bytes)");
}

TEST(DeviceFault, SoDoesOneWithoutMemoryForRecurrentStates) {
  const FailingModel model(9, {.num_layers = 1, .num_k_heads = 1, .num_v_heads = 1, .head_k_dim = 8, .head_v_dim = 8});
  ScarceRuntime scarce;
  const auto refused = testing_support::refusal_of([&] {
    const ModelRunner runner(model, {.runtime = &scarce, .num_pages = 1, .page_size = 16, .num_states = 20});
  });
  EXPECT_EQ(refused.code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(refused.sentence,
            "a pool of 20 recurrent states needs 8.4 kB: cuda:0: could not allocate 5376 bytes; 7 of 9 are free; "
            "try a smaller max_model_len, or a smaller cache (kv_cache_memory_bytes)");
}

TEST(DeviceFault, SoDoesOneWithoutMemoryForAttentionsWork) {
  const FailingModel model(9, {.num_layers = 1, .num_k_heads = 1, .num_v_heads = 1, .head_k_dim = 8, .head_v_dim = 8});
  ScarceRuntime scarce;
  const auto refused = testing_support::refusal_of([&] {
    const ModelRunner runner(model, {.runtime = &scarce, .num_pages = 1, .page_size = 16, .max_tokens = 512});
  });
  EXPECT_EQ(refused.code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(refused.sentence,
            "attention in steps of 512 rows needs 49.2 kB: cuda:0: could not allocate 49216 bytes; 7 of 9 are free; "
            "try a smaller max_model_len, or fewer tokens per step (max_num_batched_tokens)");
}

TEST(DeviceFault, SoDoesOneWithoutMemoryForAStep) {
  const FailingModel model(9);
  ScarceRuntime scarce;
  ModelRunner runner(model, {.runtime = &scarce, .num_pages = 1, .page_size = 16});
  constexpr int32_t kRows = 200;
  const std::vector<SampleSpot> spots(kRows);
  ForwardBatch batch{.mode = ForwardMode::kExtend};
  batch.attn.spans = {{.q_len = kRows}};
  for (int32_t row = 0; row < kRows; ++row) batch.logits_rows.push_back(row);
  const auto refused = testing_support::refusal_of([&] {
    runner.launch(batch);
    runner.choose({.choice = TokenChoice{.vocab = 8, .spots = spots}});
  });
  EXPECT_EQ(refused.code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(
      refused.sentence,
      "a step of 200 rows: cuda:0: could not allocate 5600 bytes; 7 of 9 are free; try a smaller max_model_len, or "
      "fewer tokens per step (max_num_batched_tokens)");
  EXPECT_FALSE(runner.retire().tokens);  // its pass ran
  EXPECT_EQ(runner.num_in_flight(), 0u);
}

// Needs memory for each row of a step.
class HungryModel final : public Model {
 public:
  explicit HungryModel(DeviceRuntime& runtime) : runtime_(runtime) {
    info_ = {.architecture = "hungry",
             .vocab_size = 8,
             .context_length = 1024,
             .num_layers = 1,
             .kv_groups = {{{1, 1, 1}, {0}}},
             .full_attn_layer_ids = {0},
             .dtype = DType::kF32};
  }
  const ModelInfo& info() const override { return info_; }
  Tensor forward(const ForwardBatch& batch) const override {
    const Tensor activations(DType::kF32, {batch.num_tokens(), 8}, runtime_);
    most_rows = std::max(most_rows, batch.num_tokens());
    return Tensor::zeros(DType::kF32, {std::ssize(batch.logits_rows), 8});
  }
  mutable int64_t most_rows = 0;

 private:
  ModelInfo info_;
  DeviceRuntime& runtime_;  // not owned
};

TEST(DeviceFault, ALargestStepWithoutMemoryFailsBeforeARequestRuns) {
  ScarceRuntime scarce;
  const HungryModel model(scarce);
  EngineConfig of_rows = config();
  of_rows.max_context_len = 128, of_rows.runner.max_tokens = 127;  // 32 bytes a row
  Engine fits(model, of_rows);
  fits.run_largest_step();
  EXPECT_EQ(model.most_rows, 127);
  EXPECT_TRUE(fits.idle());
  EXPECT_EQ(fits.counters().rows, 0);
  fits.add({1}, {.max_tokens = 1, .temperature = 0});
  EXPECT_EQ(fits.step().size(), 1u);
  of_rows.runner.max_tokens = 128;
  Engine full(model, of_rows);
  const auto refused = testing_support::refusal_of([&] { full.run_largest_step(); });
  EXPECT_EQ(refused.code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(
      refused.sentence,
      "a step of 128 rows: cuda:0: could not allocate 4096 bytes; 7 of 9 are free; try a smaller max_model_len, or "
      "fewer tokens per step (max_num_batched_tokens)");
  EXPECT_TRUE(full.idle());
}

}  // namespace
}  // namespace headrace
