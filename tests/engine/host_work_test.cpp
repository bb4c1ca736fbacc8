// What a step costs the host, and what the engine keeps: copies to a device, memory, pages.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

#include "engine/toy_diffusion_model.h"
#include "headrace/batch/device_batch.h"
#include "headrace/engine/engine.h"
#include "support/host_memory.h"

namespace {

// What objects of this program hold, in bytes as they were asked for: the heap's own figures have in them how freed
// pieces lie. Each piece has its size in front of it.
std::atomic<int64_t> held_bytes{0}, allocations{0};
constexpr size_t kFront = __STDCPP_DEFAULT_NEW_ALIGNMENT__;

}  // namespace

// This one too: a sanitizer's own would give pieces without their size in front, which the deletes below read.
void* operator new(size_t bytes, const std::nothrow_t& /*says*/) noexcept {
  void* memory = std::malloc(kFront + bytes);
  if (memory == nullptr) return nullptr;
  std::memcpy(memory, &bytes, sizeof bytes);
  held_bytes += static_cast<int64_t>(bytes);
  ++allocations;
  return static_cast<char*>(memory) + kFront;
}
void* operator new(size_t bytes) {
  void* memory = ::operator new(bytes, std::nothrow);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* object) noexcept {
  if (object == nullptr) return;
  void* memory = static_cast<char*>(object) - kFront;
  size_t bytes = 0;
  std::memcpy(&bytes, memory, sizeof bytes);
  held_bytes -= static_cast<int64_t>(bytes);
  std::free(memory);
}
void operator delete(void* object, size_t) noexcept { ::operator delete(object); }
void operator delete(void* object, const std::nothrow_t& /*says*/) noexcept { ::operator delete(object); }

namespace headrace {
namespace {

using testing_support::ToyDiffusionModel;

// Memory is counted and limited, copies are counted.
class CountingRuntime final : public testing_support::HostMemory {
 public:
  explicit CountingRuntime(size_t limit = SIZE_MAX) : limit_(limit) {}
  void* allocate(size_t bytes) override {
    HR_REQUIRE(used + bytes <= limit_, ErrorCode::kOutOfMemory, "no room for ", bytes, " bytes");
    used += bytes;
    return HostMemory::allocate(bytes);
  }
  void release(void* memory, size_t bytes) noexcept override {
    used -= bytes;
    HostMemory::release(memory, bytes);
  }
  void copy_to_device(void* to, const void* from, size_t bytes) override {
    ++copies;
    HostMemory::copy_to_device(to, from, bytes);
  }

  size_t used = 0;
  int32_t copies = 0;

 private:
  size_t limit_;
};

TEST(HostWork, B17_AStepGoesToADeviceInOneCopyAndTheChangedPagesInOneMore) {
  CountingRuntime runtime;
  DeviceBatch device({.max_requests = 2, .max_tokens = 8, .table_rows = 2, .table_pages = 8, .page_size = 4}, runtime);
  std::vector<int32_t> ids(8, 1), positions(8, 0);
  std::vector<int64_t> slots = {kDoNotStore, kDoNotStore, kDoNotStore, kDoNotStore, 20, 21, 22, 23};
  const Tensor table = Tensor::zeros(DType::kI32, {2, 8});
  for (int32_t i = 0; i < 16; ++i) table.data_as<int32_t>()[i] = i + 1;
  ForwardBatch batch{.mode = ForwardMode::kExtend};
  batch.input_ids = TensorView(ids.data(), DType::kI32, {8});
  batch.positions = TensorView(positions.data(), DType::kI32, {8});
  batch.attn.spans = {{.q_off = 0, .q_len = 4, .ctx_len = 8, .phys0 = 8, .page_row = 0},
                      {.q_off = 4, .q_len = 4, .ctx_len = 12, .phys0 = 12, .page_row = 1}};
  batch.attn.write_slots = TensorView(slots.data(), DType::kI64, {8});
  batch.attn.page_table = table;
  batch.logits_rows = {0, 1, 5};
  runtime.copies = 0;
  device.upload(batch);
  EXPECT_EQ(runtime.copies, 2);
  device.upload(batch);
  EXPECT_EQ(runtime.copies, 3);
}

// A page table names the pages that requests have; nothing else grows with the context, and nothing by a token of it.
TEST(HostWork, W30_StepsNeedNoMemoryForTheContextButThePageTable) {
  const auto used = [](int64_t table_pages) {
    CountingRuntime runtime;
    const DeviceBatch device(
        {.max_requests = 8, .max_tokens = 64, .table_rows = 8, .table_pages = table_pages, .page_size = 64}, runtime);
    return static_cast<int64_t>(runtime.used);
  };
  EXPECT_EQ(used(4096) - used(64), 8 * (4096 - 64) * int64_t{sizeof(int32_t)});
}

EngineConfig toy_config(int32_t num_blocks, CountingRuntime& runtime) {
  EngineConfig config;
  config.runner = {.runtime = &runtime, .num_pages = 64, .page_size = ToyDiffusionModel::kPageSize};
  config.max_context_len = 1024;
  config.strategy = "multi_bd";
  config.decoding.num_blocks = num_blocks;
  return config;
}

TEST(HostWork, B17_AStepLooksAtTheBlocksInFlightHoweverLongTheTextIs) {
  for (const auto logits_of : {DiffusionInfo::LogitsOf::kSame, DiffusionInfo::LogitsOf::kBefore}) {
    const ToyDiffusionModel model({.logits_of = logits_of});
    for (const int32_t num_blocks : {1, 4}) {
      CountingRuntime runtime;
      Engine engine(model, toy_config(num_blocks, runtime));
      const StrategyConfig decoding{.model = model.info().diffusion, .num_blocks = num_blocks};
      const int32_t said = make_strategy("multi_bd", decoding)->traits().step->most_rows;
      EXPECT_EQ(said, 2 * num_blocks * 4);
      size_t most_blocks = 0;
      int32_t most_rows = 0;
      engine.observe([&](StepMoment moment, const Sequence& s, const StepPlan& plan) {
        if (moment == StepMoment::kCommitted) return;
        most_blocks = std::max(most_blocks, s.blocks.size());
        most_rows = std::max(most_rows, plan.num_rows());
      });
      engine.add({1, 2, 3}, {.max_tokens = 600, .temperature = 0});
      size_t count = 0;
      while (!engine.idle()) count += engine.step().size();
      EXPECT_EQ(count, 600u);
      EXPECT_LE(most_blocks, static_cast<size_t>(2 * num_blocks));
      EXPECT_LE(most_rows, said);
      if (num_blocks == 1) {
        EXPECT_EQ(most_rows, said);
      }
    }
  }
}

TEST(HostWork, B22_ThePoolIsWhatWasAskedForAndNeverGrows) {
  const ToyDiffusionModel model({});
  CountingRuntime runtime;
  const EngineConfig config = toy_config(2, runtime);
  Engine engine(model, config);
  const size_t at_start = runtime.used;
  EXPECT_GE(at_start, static_cast<size_t>(engine.runner().pool_bytes()));
  const auto run = [&](size_t most) {
    engine.add({1, 2, 3}, {.max_tokens = 600, .temperature = 0});
    while (!engine.idle()) {
      engine.step();
      EXPECT_LE(runtime.used, most);
    }
  };
  run(at_start + 2 * 64 * config.runner.max_tokens);  // what is read of two steps' rows has its place now
  run(runtime.used);
  EXPECT_EQ(engine.scheduler().free_pages(), 64);

  CountingRuntime narrow(at_start - 1);
  try {
    const Engine other(model, toy_config(2, narrow));
    FAIL() << "an engine without room for its pool was made";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kOutOfMemory) << e.what();
  }
  EXPECT_EQ(narrow.used, 0u);
}

TEST(HostWork, B30_NothingIsKeptOfAStepOrARequestThatIsOver) {
  const ToyDiffusionModel model({});
  CountingRuntime runtime;
  Engine engine(model, toy_config(2, runtime));
  const auto run = [&engine, &model] {
    engine.add({1, 2, 3}, {.max_tokens = 300, .temperature = 0});
    while (!engine.idle()) engine.step();
    model.rows = {};  // the toy model itself keeps a record
    model.logits_rows = {};
    return held_bytes.load();
  };
  run();  // what grows to the size of a step has it now
  const int64_t before = run();
  const size_t used = runtime.used;
  for (int i = 0; i < 80; ++i) EXPECT_EQ(run(), before) << "request " << i;
  EXPECT_EQ(runtime.used, used);
}

// A step's lists of requests grow as a whole, not by a piece of memory for each of them.
TEST(HostWork, AllocationsOfAStepDoNotGrowWithItsRequests) {
  using StepsAhead = EngineConfig::StepsAhead;
  constexpr int32_t kRequests = 64;
  const testing_support::ByPosition model;
  for (const auto ahead : {StepsAhead::kNever, StepsAhead::kAlways}) {
    CountingRuntime runtime;
    EngineConfig config = toy_config(1, runtime);
    config.strategy = "autoregressive", config.steps_ahead = ahead;
    config.max_requests = kRequests, config.max_context_len = 48;
    config.runner.num_pages = kRequests * 48 / ToyDiffusionModel::kPageSize;
    Engine engine(model, config);
    for (int32_t r = 0; r < kRequests; ++r)
      engine.add({1, 2, 3}, {.max_tokens = 40, .temperature = 0, .end_of_text = SamplingParams::EndOfText::kIgnored});
    for (int i = 0; i < 36; ++i) engine.step();  // texts now have room for tokens to come
    const int64_t before = allocations;
    EXPECT_EQ(engine.step().size(), static_cast<size_t>(kRequests));
    EXPECT_LT(allocations - before, kRequests);
  }
}

// Each of them is unlike all others, and ends in another way.
int64_t most_held_in_rounds(Engine& engine, const ToyDiffusionModel& diffusion, int first, int last) {
  int64_t most = 0;
  for (int round = first; round < last; ++round) {
    SamplingParams params{.max_tokens = 20, .temperature = 0, .end_of_text = SamplingParams::EndOfText::kIgnored};
    params.repetition_penalty = 1 + 1e-5f * static_cast<float>(round);
    const std::vector<int32_t> prompt = {round % 60, round / 60 % 60, round / 3600, 1};
    std::vector<int64_t> ids;
    for (int32_t i = 0; i < 4; ++i) {  // two of them run at a time
      std::vector<int32_t> own(static_cast<size_t>(30 + i), i + 1);
      own.insert(own.begin(), prompt.begin(), prompt.end());
      ids.push_back(engine.add(own, params));
    }
    EXPECT_THROW(engine.add({}, params), Error);
    engine.abort(ids[3]);  // it waits
    for (int step = 0; step < 3; ++step) engine.step();
    engine.abort(ids[1]);  // it runs
    while (!engine.idle()) engine.step();
    diffusion.rows = {}, diffusion.logits_rows = {};  // the toy model itself keeps a record
    most = std::max(most, held_bytes.load());
  }
  return most;
}

TEST(HostWork, NothingGrowsWithTheRequestsEverMade) {
  using StepsAhead = EngineConfig::StepsAhead;
  const ToyDiffusionModel diffusion({});
  const testing_support::ByPosition causal;
  for (const bool blocks : {false, true}) {
    CountingRuntime runtime;
    EngineConfig config = toy_config(1, runtime);
    config.strategy = blocks ? "multi_bd" : "autoregressive";
    config.max_requests = 2;
    config.keep_text = SchedulerConfig::KeepText::kYes;
    config.steps_ahead = StepsAhead::kAlways;
    int lines = 0;
    config.log = [&lines](LogLevel, std::string_view) { ++lines; };
    Engine engine(blocks ? static_cast<const Model&>(diffusion) : causal, config);
    const int64_t early = most_held_in_rounds(engine, diffusion, 1, 100);  // the pool is full of their texts by then
    const size_t used = runtime.used;
    const int said = lines;
    EXPECT_LE(most_held_in_rounds(engine, diffusion, 100, 600), early) << config.strategy;
    EXPECT_EQ(runtime.used, used);
    EXPECT_EQ(lines, said);
  }
}

}  // namespace
}  // namespace headrace
