// Pages by need, preemption, fair prompts and the prefix cache, as an engine's users see them.
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "headrace/engine/engine.h"
#include "support/random.h"

namespace headrace {
namespace {

using Ids = std::vector<int32_t>;
using testing_support::Random;
using EndOfText = SamplingParams::EndOfText;

enum class Layers : uint8_t { kDense, kHybrid };

// A step may have so many rows until it runs out of memory, and none of them with this token.
struct StepMemory {
  int64_t rows = 1 << 30;
  int32_t too_large = -1;
};

// Writes its end token at position `end_at`, before it the token 1.
class EndsAt final : public Model {
 public:
  static constexpr int32_t kVocab = 64, kEnd = 62;

  explicit EndsAt(Layers layers, int32_t end_at = 1 << 30, StepMemory memory = {}) : end_at_(end_at), memory_(memory) {
    info_ = {.architecture = "ends at",
             .vocab_size = kVocab,
             .context_length = 1 << 20,
             .num_layers = 2,
             .kv_groups = {{.shape = {.num_kv_heads = 1, .head_dim = 4, .v_head_dim = 4}, .layer_ids = {0}}},
             .full_attn_layer_ids = {0},
             .dtype = DType::kF32};
    info_.eos_ids = {kEnd};
    if (layers == Layers::kDense) return;
    info_.num_gdn_layers = 1;
    info_.gdn = {.num_layers = 1, .num_k_heads = 1, .num_v_heads = 1, .head_k_dim = 4, .head_v_dim = 4};
  }
  const ModelInfo& info() const override { return info_; }
  Tensor forward(const ForwardBatch& batch) const override {
    const auto* ids = static_cast<const int32_t*>(batch.input_ids.data());
    const bool fits = batch.num_tokens() <= memory_.rows &&
                      std::find(ids, ids + batch.num_tokens(), memory_.too_large) == ids + batch.num_tokens();
    HR_REQUIRE(fits, ErrorCode::kOutOfMemory, "no memory for the step");
    Tensor logits = Tensor::zeros(DType::kF32, {std::ssize(batch.logits_rows), kVocab});
    const auto* positions = static_cast<const int32_t*>(batch.positions.data());
    for (size_t r = 0; r < batch.logits_rows.size(); ++r) {
      const bool ends = positions[batch.logits_rows[r]] + 1 >= end_at_;
      logits.data_as<float>()[r * kVocab + (ends ? kEnd : 1)] = 20;
    }
    return logits;
  }

 private:
  ModelInfo info_;
  int32_t end_at_;
  StepMemory memory_;
};

EngineConfig memory_config(int32_t pages, int32_t page_size, int32_t context, int32_t cached_states = 8) {
  EngineConfig config{.max_requests = 16, .max_context_len = context};
  config.runner.num_pages = pages;
  config.runner.page_size = page_size;
  config.runner.max_tokens = 512;
  config.runner.num_states = config.max_requests + cached_states;
  config.keep_text = SchedulerConfig::KeepText::kYes;
  return config;
}

SamplingParams tokens_of(int32_t max_tokens) {
  return {.max_tokens = max_tokens, .temperature = 0, .end_of_text = EndOfText::kIgnored};
}

Ids random_ids(int32_t count, uint64_t seed) {
  Random random(seed);
  Ids ids;
  for (int32_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>(random.below(60)));
  return ids;
}

Ids followed_by(Ids first, const Ids& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// Runs a request alone and returns the tokens that it reused.
int32_t reused_by(Engine& engine, const Ids& prompt, int32_t max_tokens, Ids* text = nullptr) {
  engine.add(prompt, tokens_of(max_tokens));
  int32_t reused = 0;
  if (text != nullptr) *text = prompt;
  while (!engine.idle()) {
    for (const StepOutput& out : engine.step()) {
      reused = out.num_reused;
      if (text != nullptr) text->push_back(out.token.id);
    }
    engine.scheduler().audit();
  }
  return reused;
}

// Steps until a request has its first token.
int steps_to_first_token(Engine& engine, int64_t id, int most) {
  for (int steps = 1; steps <= most; ++steps) {
    for (const StepOutput& out : engine.step()) {
      if (out.sequence_id == id) return steps;
    }
  }
  return most + 1;
}

TEST(EngineMemory, TextThatMayNeverComeTakesNoPages) {
  const EndsAt model(Layers::kDense, 26);
  Engine engine(model, memory_config(64, 16, 1024));
  for (int32_t i = 0; i < 16; ++i)
    engine.add(Ids(16, i), {.max_tokens = 1000, .temperature = 0, .end_of_text = EndOfText::kStops});
  size_t most = 0, steps = 0;
  for (; !engine.idle(); ++steps) {
    engine.step();
    most = std::max(most, engine.scheduler().num_running());
    engine.scheduler().audit();
  }
  EXPECT_EQ(most, 16u);
  EXPECT_LE(steps, 13u);
  EXPECT_EQ(engine.scheduler().num_preempted(), 0);
}

TEST(EngineMemory, TheYoungestIsPreemptedWhenPagesRunOutAndAllEnd) {
  for (const Layers layers : {Layers::kDense, Layers::kHybrid}) {
    const EndsAt model(layers);
    Engine engine(model, memory_config(16, 16, 256));
    std::map<int64_t, size_t> tokens;
    std::vector<int64_t> ids, ended;
    for (int32_t i = 0; i < 8; ++i) ids.push_back(engine.add(Ids(20, i), tokens_of(100)));
    while (!engine.idle()) {
      for (const StepOutput& out : engine.step()) {
        ++tokens[out.sequence_id];
        if (out.finish_reason) ended.push_back(out.sequence_id);
      }
      engine.scheduler().audit();
    }
    EXPECT_EQ(ended, ids) << "the oldest end first";
    for (const int64_t id : ids) EXPECT_EQ(tokens[id], 100u);
    EXPECT_GT(engine.scheduler().num_preempted(), 0);
    EXPECT_EQ(engine.scheduler().free_pages(), 16);
  }
}

TEST(EngineMemory, ARequestThatCanNeverFitIsRefused) {
  const EndsAt model(Layers::kDense);
  Engine engine(model, memory_config(4, 16, 1024));
  EXPECT_NO_THROW(engine.add(Ids(20, 1), tokens_of(44)));
  EXPECT_THROW(engine.add(Ids(20, 1), tokens_of(45)), Error);
}

TEST(EngineMemory, AnAbortFreesAllAtOnceAndKeepsWholePages) {
  const EndsAt model(Layers::kDense);
  Engine engine(model, memory_config(16, 16, 256));
  const int64_t id = engine.add(Ids(40, 1), tokens_of(100));
  for (int i = 0; i < 10; ++i) engine.step();
  engine.abort(id);
  EXPECT_TRUE(engine.idle());
  EXPECT_EQ(engine.scheduler().free_pages(), 16);
  engine.scheduler().audit();
  EXPECT_EQ(reused_by(engine, Ids(48, 1), 1), 32);
}

TEST(EngineMemory, AShortPromptDoesNotWaitBehindALongOne) {
  const EndsAt model(Layers::kDense);
  Engine engine(model, memory_config(2000, 64, 110000));
  engine.add(Ids(16, 1), tokens_of(1000));
  engine.step();
  engine.add(random_ids(100000, 2), tokens_of(1));
  engine.step();
  const int64_t small = engine.add(Ids(10, 3), tokens_of(1));
  EXPECT_LE(steps_to_first_token(engine, small, 200), 1);
}

TEST(EngineMemory, ALongPromptDoesNotStarveBehindShortOnes) {
  const EndsAt model(Layers::kDense);
  Engine engine(model, memory_config(2000, 64, 110000));
  const int64_t large = engine.add(random_ids(12800, 2), tokens_of(1));
  int steps = 0;
  for (bool got = false; !got && steps < 1000; ++steps) {
    for (uint64_t i = 0; i < 2; ++i)
      engine.add(random_ids(512, 1000 + 2 * static_cast<uint64_t>(steps) + i), tokens_of(1));
    for (const StepOutput& out : engine.step()) got |= out.sequence_id == large;
  }
  EXPECT_LE(steps, 100) << "a quarter of 512 rows a step";
}

TEST(EngineMemory, DecodingNeverWaitsForAPrompt) {
  const EndsAt model(Layers::kDense);
  Engine engine(model, memory_config(2000, 64, 110000));
  const int64_t first = engine.add(Ids(16, 1), tokens_of(1000));
  engine.step();
  engine.add(random_ids(50000, 2), tokens_of(1));
  for (int i = 0; i < 50; ++i) {
    const std::vector<StepOutput> outputs = engine.step();
    ASSERT_EQ(outputs.size(), 1u);
    EXPECT_EQ(outputs[0].sequence_id, first);
  }
}

TEST(EngineMemory, TheSecondRequestSharesASystemPrompt) {
  for (const Layers layers : {Layers::kDense, Layers::kHybrid}) {
    const EndsAt model(layers);
    Engine engine(model, memory_config(400, 64, 8192));
    const Ids system = random_ids(4096, 7);
    EXPECT_EQ(reused_by(engine, followed_by(system, random_ids(100, 1)), 1), 0);
    EXPECT_EQ(reused_by(engine, followed_by(system, random_ids(100, 2)), 1), 4096);
    EXPECT_EQ(reused_by(engine, followed_by(system, random_ids(100, 3)), 1), 4096);
  }
}

TEST(EngineMemory, TheSecondRequestSharesMostOfAPromptThatRanInOneStep) {
  const EndsAt model(Layers::kHybrid);
  EngineConfig config = memory_config(2000, 64, 16384);
  config.runner.max_tokens = 16384;
  Engine engine(model, config);
  const Ids system = random_ids(6528, 1);
  EXPECT_EQ(reused_by(engine, followed_by(system, random_ids(1664, 2)), 1), 0);
  EXPECT_EQ(reused_by(engine, followed_by(system, random_ids(1664, 3)), 1), 6080) << "8128 less a quarter, whole pages";
  EXPECT_EQ(reused_by(engine, followed_by(system, random_ids(1664, 4)), 1), 6528);
}

TEST(EngineMemory, TheThirdRequestSharesASystemPromptHoweverFullTheCacheIs) {
  const EndsAt model(Layers::kHybrid);
  EngineConfig config = memory_config(2000, 64, 8192, 9);
  config.max_requests = 1, config.runner.num_states = 10;
  Engine engine(model, config);
  for (uint64_t round = 0; round < 8; ++round) {
    const Ids system = random_ids(3264, 10 * round);
    reused_by(engine, followed_by(system, random_ids(830, 10 * round + 1)), 1);
    const int32_t second = reused_by(engine, followed_by(system, random_ids(830, 10 * round + 2)), 1);
    EXPECT_TRUE(round > 1 || second == 3072) << "it has what takes no state from other texts: " << second;
    EXPECT_EQ(reused_by(engine, followed_by(system, random_ids(830, 10 * round + 3)), 1), 3264) << "round " << round;
  }
}

TEST(EngineMemory, TheSecondRequestSharesASystemPromptThatTheFirstComputes) {
  for (const Layers layers : {Layers::kDense, Layers::kHybrid}) {
    const EndsAt model(layers);
    Engine engine(model, memory_config(400, 64, 8192));
    const Ids system = random_ids(4000, 7);
    const int64_t first = engine.add(followed_by(system, random_ids(300, 1)), tokens_of(1));
    engine.step();
    const int64_t second = engine.add(followed_by(system, random_ids(300, 2)), tokens_of(1));
    std::map<int64_t, int32_t> reused;
    while (!engine.idle()) {
      for (const StepOutput& out : engine.step()) reused[out.sequence_id] = out.num_reused;
      engine.scheduler().audit();
    }
    EXPECT_EQ(reused[first], 0);
    EXPECT_EQ(reused[second], 4000 / 64 * 64);
    EXPECT_LT(engine.counters().rows, 4300 + 400 + 10);
  }
}

// A turn adds a question to all text so far.
double reused_share(Engine& engine, int32_t chats, int32_t turns) {
  std::vector<Ids> texts;
  for (int32_t c = 0; c < chats; ++c) texts.push_back(random_ids(400, static_cast<uint64_t>(c)));
  int64_t reused = 0, known = 0;
  for (int32_t turn = 0; turn < turns; ++turn) {
    for (size_t c = 0; c < texts.size(); ++c) {
      const Ids prompt = followed_by(texts[c], random_ids(60, 100 * static_cast<uint64_t>(turn) + c));
      if (turn > 0) known += std::ssize(texts[c]);
      reused += reused_by(engine, prompt, 40, &texts[c]);
    }
  }
  return static_cast<double>(reused) / static_cast<double>(known);
}

TEST(EngineMemory, HybridChatsInTurnReuseTheirText) {
  const EndsAt model(Layers::kHybrid);
  Engine engine(model, memory_config(4000, 16, 8192, 12));
  EXPECT_GE(reused_share(engine, 10, 10), 0.95);
}

TEST(EngineMemory, TextsOfTwoSaltsAreNeverShared) {
  const EndsAt model(Layers::kDense);
  Engine engine(model, memory_config(64, 16, 1024));
  const Ids prompt = random_ids(100, 1);
  const auto reused = [&](const char* salt) {
    engine.add(prompt, tokens_of(1), salt);
    int32_t tokens = -1;
    while (!engine.idle()) {
      for (const StepOutput& out : engine.step()) tokens = out.num_reused;
    }
    return tokens;
  };
  EXPECT_EQ(reused("a"), 0);
  EXPECT_EQ(reused("b"), 0);
  EXPECT_EQ(reused(""), 0);
  EXPECT_EQ(reused("a"), 96);
}

struct Ends {
  std::map<int64_t, size_t> tokens;
  std::map<int64_t, ErrorCode> errors;
};

Ends run_to_end(Engine& engine) {
  Ends ends;
  for (int steps = 0; !engine.idle() && steps < 2000; ++steps) {
    for (const StepOutput& out : engine.step()) {
      if (out.error) {
        ends.errors[out.sequence_id] = out.error->code();
      } else {
        ++ends.tokens[out.sequence_id];
      }
    }
    engine.scheduler().audit();
  }
  EXPECT_TRUE(engine.idle());
  return ends;
}

TEST(EngineMemory, AStepThatRunsOutOfMemoryRunsAgainInParts) {
  for (const Layers layers : {Layers::kDense, Layers::kHybrid}) {
    const EndsAt model(layers, 1 << 30, {.rows = 70});
    Engine engine(model, memory_config(64, 16, 512));
    for (uint64_t i = 0; i < 4; ++i) engine.add(random_ids(60, i), tokens_of(20));
    const Ends ends = run_to_end(engine);
    EXPECT_TRUE(ends.errors.empty());
    for (int64_t id = 1; id <= 4; ++id) EXPECT_EQ(ends.tokens.at(id), 20u);
  }
}

TEST(EngineMemory, APromptLargerThanMemoryRunsInSmallerSteps) {
  const EndsAt model(Layers::kHybrid, 1 << 30, {.rows = 70});
  Engine engine(model, memory_config(64, 16, 512));
  engine.add(random_ids(300, 1), tokens_of(20));
  EXPECT_EQ(run_to_end(engine).tokens.at(1), 20u);
}

TEST(EngineMemory, WhoRunsOutOfMemoryAloneEndsAndTheOthersGoOn) {
  for (const Layers layers : {Layers::kDense, Layers::kHybrid}) {
    const EndsAt model(layers, 1 << 30, {.too_large = 61});
    Engine engine(model, memory_config(64, 16, 512));
    for (uint64_t i = 0; i < 3; ++i) engine.add(random_ids(60, i), tokens_of(30));
    engine.step();
    Ids large = random_ids(60, 9);
    large[40] = 61;
    const int64_t id = engine.add(large, tokens_of(30));
    const Ends ends = run_to_end(engine);
    EXPECT_EQ(ends.errors.size(), 1u);
    EXPECT_EQ(ends.errors.at(id), ErrorCode::kOutOfMemory);
    for (int64_t other = 1; other <= 3; ++other) EXPECT_EQ(ends.tokens.at(other), 29u) << "one came before";
    EXPECT_EQ(engine.scheduler().free_pages(), 64);
  }
}

PrefixMiss miss_of(Engine& engine, const Ids& prompt, std::string salt = {}) {
  const int64_t id = engine.add(prompt, tokens_of(2), std::move(salt));
  std::optional<PrefixMiss> miss;
  while (!engine.idle()) {
    engine.step();
    if (!miss) miss = engine.why_miss(id);
  }
  return miss.value();
}

TEST(EngineMemory, AMissSaysWhereAndWhyItEnded) {
  using Why = PrefixMiss::Why;
  const EndsAt model(Layers::kDense);
  Engine engine(model, memory_config(12, 16, 512));
  const Ids text = random_ids(100, 1), other = followed_by(Ids(text.begin(), text.begin() + 40), random_ids(60, 2));
  EXPECT_EQ(miss_of(engine, text).why, Why::kNewText);
  EXPECT_EQ(miss_of(engine, text).why, Why::kNone);
  const PrefixMiss parts = miss_of(engine, other);
  EXPECT_EQ(parts.why, Why::kOtherText);
  EXPECT_EQ(parts.position, 32);
  EXPECT_EQ(parts.num_computed, 68);
  EXPECT_EQ(parts.own_text, Ids(other.begin() + 32, other.begin() + 48));
  EXPECT_EQ(parts.cached_text, Ids(text.begin() + 32, text.begin() + 48));
  EXPECT_EQ(to_string(parts), "32 of 100 tokens were cached: cached text goes on with other tokens behind token 32");
  const PrefixMiss salted = miss_of(engine, text, "another");
  EXPECT_EQ(salted.why, Why::kNewText) << "nobody sees that there is such a text";
  miss_of(engine, random_ids(180, 3));
  EXPECT_EQ(miss_of(engine, text).why, Why::kPageEvicted);
}

TEST(EngineMemory, AMissOfAHybridNamesTheState) {
  using Why = PrefixMiss::Why;
  const EndsAt model(Layers::kHybrid);
  Engine engine(model, memory_config(64, 16, 512, 1));
  const Ids text = random_ids(100, 1), other = followed_by(Ids(text.begin(), text.begin() + 40), random_ids(60, 2));
  EXPECT_EQ(miss_of(engine, text).why, Why::kNewText);
  const PrefixMiss missing = miss_of(engine, other);
  EXPECT_EQ(missing.why, Why::kStateMissing);
  EXPECT_EQ(missing.position, 0);
  EXPECT_EQ(missing.num_matching, 32);
  const PrefixMiss evicted = miss_of(engine, text);
  EXPECT_EQ(evicted.why, Why::kStateEvicted);
  EXPECT_EQ(evicted.num_matching, 96);
}

}  // namespace
}  // namespace headrace
