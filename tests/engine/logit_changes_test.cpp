// Requests whose logits are changed: their tokens against a loop that writes them one by one from the definition; one
// that fails alone; no logits come to the host.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <stdexcept>

#include "engine/toy_diffusion_model.h"
#include "headrace/engine/engine.h"
#include "support/host_memory.h"
#include "support/random.h"
#include "support/refusal.h"

namespace headrace {
namespace {

using StepsAhead = EngineConfig::StepsAhead;
using EndOfText = SamplingParams::EndOfText;
using testing_support::Random;
using Ids = std::vector<int32_t>;

constexpr int32_t kVocab = 70, kEos = 5, kOtherEos = 11;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Of the token behind `token` at `position`: half of them negative.
float logit_of(int32_t token, int32_t position, int32_t id) {
  const auto mixed = static_cast<uint64_t>(token) * 7919 + static_cast<uint64_t>(position % 5) * 104729;
  Random random(mixed + static_cast<uint64_t>(id) * 15485863);
  return static_cast<float>(random.uniform() * 6 - 3);
}

class HashedLogits final : public Model {
 public:
  HashedLogits() {
    info_ = {.architecture = "hashed",
             .vocab_size = kVocab,
             .context_length = 512,
             .num_layers = 1,
             .eos_ids = {kEos, kOtherEos},
             .kv_groups = {{{1, 4, 4}, {0}}},
             .full_attn_layer_ids = {0},
             .dtype = DType::kF32};
  }
  const ModelInfo& info() const override { return info_; }
  Tensor forward(const ForwardBatch& batch) const override {
    Tensor logits(DType::kF32, {std::ssize(batch.logits_rows), kVocab});
    const auto ids = batch.input_ids.as<const int32_t, 1>("ids"),
               positions = batch.positions.as<const int32_t, 1>("positions");
    for (int64_t r = 0; r < logits.view().dim(0); ++r) {
      const int32_t row = batch.logits_rows[static_cast<size_t>(r)];
      for (int32_t id = 0; id < kVocab; ++id) {
        logits.data_as<float>()[r * kVocab + id] = logit_of(ids(row), positions(row), id);
      }
    }
    return logits;
  }

 private:
  ModelInfo info_;
};

// Allows the ids of one remainder by three, another one after each token.
class ByTurns final : public TokenConstraint {
 public:
  static bool allows(size_t num_accepted, int32_t id) { return id % 3 == static_cast<int32_t>(num_accepted % 3); }

  void fill(std::span<uint32_t> bits) override {
    std::ranges::fill(bits, 0);
    for (int32_t id = 0; id < kVocab; ++id) {
      if (allows(accepted.size(), id)) bits[static_cast<size_t>(id / 32)] |= 1u << id % 32;
    }
  }
  void accept(int32_t id) override { accepted.push_back(id); }

  Ids accepted;
};

enum class Constrained : uint8_t { kNo, kByTurns };

// The likeliest tokens, from the definition in double.
class WrittenOut {
 public:
  WrittenOut(Ids prompt, const SamplingParams& params, Constrained constrained)
      : text_(std::move(prompt)), prompt_len_(text_.size()), params_(params), constrained_(constrained) {}

  Ids output() {
    for (int32_t n = 0; n < params_.max_tokens; ++n) {
      const int32_t id = next();
      text_.push_back(id);
      const bool is_end = params_.end_of_text == EndOfText::kStops && (id == kEos || id == kOtherEos);
      if (is_end || std::ranges::count(params_.stop_token_ids, id) > 0) break;
    }
    return {text_.begin() + static_cast<std::ptrdiff_t>(prompt_len_), text_.end()};
  }

 private:
  size_t num_output() const { return text_.size() - prompt_len_; }
  bool is_forbidden(int32_t id) const {
    const bool is_eos = id == kEos || id == kOtherEos, is_stop = std::ranges::count(params_.stop_token_ids, id) > 0;
    const bool is_early = num_output() < static_cast<size_t>(params_.min_tokens);
    return (is_eos && params_.end_of_text == EndOfText::kBanned) ||
           (is_early && (is_stop || (is_eos && params_.end_of_text == EndOfText::kStops))) ||
           (constrained_ == Constrained::kByTurns && !ByTurns::allows(num_output(), id));
  }
  double changed(int32_t id) const {
    double logit = logit_of(text_.back(), static_cast<int32_t>(text_.size()) - 1, id);
    for (const LogitBias& one : params_.logit_bias) logit += one.id == id ? static_cast<double>(one.bias) : 0;
    const auto penalty = static_cast<double>(params_.repetition_penalty);
    if (std::ranges::count(text_, id) > 0) logit = logit > 0 ? logit / penalty : logit * penalty;
    const auto count = std::count(text_.begin() + static_cast<std::ptrdiff_t>(prompt_len_), text_.end(), id);
    if (count > 0) logit -= static_cast<double>(params_.presence_penalty);
    return logit - static_cast<double>(params_.frequency_penalty) * static_cast<double>(count);
  }
  int32_t next() const {
    int32_t best = -1;
    double largest = -std::numeric_limits<double>::infinity();
    for (int32_t id = 0; id < kVocab; ++id) {
      const double logit = is_forbidden(id) ? -std::numeric_limits<double>::infinity() : changed(id);
      if (logit > largest) best = id, largest = logit;
    }
    return best;
  }

  Ids text_;
  size_t prompt_len_;
  SamplingParams params_;
  Constrained constrained_;
};

struct Case {
  std::string name;
  SamplingParams params;
  Constrained constrained = Constrained::kNo;
};

SamplingParams likely(SamplingParams params) {
  params.max_tokens = 60, params.temperature = 0;
  return params;
}

std::vector<Case> cases() {
  const SamplingParams stops = likely({}), free = likely({.end_of_text = EndOfText::kIgnored});
  std::vector<Case> all = {{"nothing", free}, {"end tokens", stops}};
  const auto add = [&all](const std::string& name, SamplingParams params, auto change) {
    change(params);
    all.push_back({name, params});
  };
  add("a presence penalty", free, [](SamplingParams& p) { p.presence_penalty = 0.7f; });
  add("a negative presence penalty", free, [](SamplingParams& p) { p.presence_penalty = -0.4f; });
  add("a frequency penalty", free, [](SamplingParams& p) { p.frequency_penalty = 0.35f; });
  add("biases", free, [](SamplingParams& p) { p.logit_bias = {{3, 4}, {8, -4}, {9, -kInfinity}, {10, 5.5f}}; });
  add("least tokens", stops, [](SamplingParams& p) { p.min_tokens = 33, p.stop_token_ids = {1, 2, 3, 4, 6, 7}; });
  add("least tokens, all", stops, [](SamplingParams& p) { p.min_tokens = p.max_tokens, p.logit_bias = {{kEos, 50}}; });
  add("banned end tokens", free, [](SamplingParams& p) { p.end_of_text = EndOfText::kBanned; });
  all.push_back({"a constraint", free, Constrained::kByTurns});
  add("all of it", stops, [](SamplingParams& p) {
    p.repetition_penalty = 1.3f, p.presence_penalty = 0.3f, p.frequency_penalty = 0.2f;
    p.logit_bias = {{3, 4}, {8, -4}, {kEos, 9}, {10, 2.5f}}, p.min_tokens = 40, p.stop_token_ids = {12};
  });
  all.back().constrained = Constrained::kByTurns;
  return all;
}

Ids prompt_of(size_t request) {
  Ids prompt;
  for (size_t p = 0; p < 4 + request % 3 * 20; ++p) prompt.push_back(static_cast<int32_t>((p * 13 + request) % kVocab));
  return prompt;
}

EngineConfig config_of(StepsAhead ahead, DeviceRuntime& runtime = cpu_runtime()) {
  return {.runner = {.runtime = &runtime, .num_pages = 256, .page_size = 16, .max_tokens = 64},
          .max_requests = 16,
          .max_context_len = 256,
          .strategy = "autoregressive",
          .steps_ahead = ahead};
}

struct Answer {
  Ids ids;
  std::vector<SampledToken> tokens;
  std::optional<Error> error;
};
using Answers = std::map<int64_t, Answer>;

void take(const std::vector<StepOutput>& outputs, Answers& answers) {
  for (const StepOutput& out : outputs) {
    Answer& answer = answers[out.sequence_id];
    answer.error = out.error;
    if (out.error) continue;
    answer.ids.push_back(out.token.id);
    answer.tokens.push_back(out.token);
  }
}

Answers answers_of(Engine& engine) {
  Answers answers;
  while (!engine.idle()) take(engine.step(), answers);
  return answers;
}

int64_t add(Engine& engine, const Case& one, size_t request) {
  EngineRequest wanted{.prompt = prompt_of(request), .params = one.params};
  if (one.constrained == Constrained::kByTurns) wanted.constraint = std::make_shared<ByTurns>();
  return engine.add(std::move(wanted));
}

class ChangedLogits : public testing::TestWithParam<StepsAhead> {
 protected:
  const HashedLogits model_;
};

TEST_P(ChangedLogits, GiveTheTokensOfTheDefinitionAndTheModelsProbabilities) {
  Engine engine(model_, config_of(GetParam()));
  const std::vector<Case> all = cases();
  for (size_t i = 0; i < all.size(); ++i) add(engine, all[i], i);
  const Answers answers = answers_of(engine);
  for (size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(all[i].name);
    const Answer& got = answers.at(static_cast<int64_t>(i) + 1);
    EXPECT_EQ(got.ids, WrittenOut(prompt_of(i), all[i].params, all[i].constrained).output());
    Ids text = prompt_of(i);
    for (const SampledToken& token : got.tokens) {
      double sum = 0;
      const auto logit = [&](int32_t id) {
        return static_cast<double>(logit_of(text.back(), static_cast<int32_t>(text.size()) - 1, id));
      };
      for (int32_t id = 0; id < kVocab; ++id) sum += std::exp(logit(id));
      EXPECT_NEAR(static_cast<double>(token.logprob), logit(token.id) - std::log(sum), 2e-6);
      text.push_back(token.id);
    }
  }
}

// What is counted and what a constraint knows does not depend on what the pools hold.
TEST_P(ChangedLogits, SurvivePreemption) {
  Engine engine(model_, config_of(GetParam()));
  const std::vector<Case> all = cases();
  for (size_t i = 0; i < all.size(); ++i) add(engine, all[i], i);
  Answers answers;
  int32_t preempted = 0;
  for (int step = 0; !engine.idle(); ++step) {
    take(engine.step(), answers);
    for (int64_t id = 1; id <= std::ssize(all); ++id) preempted += step % 7 == id % 7 && engine.preempt(id) ? 1 : 0;
  }
  EXPECT_GT(preempted, 20);
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(answers.at(static_cast<int64_t>(i) + 1).ids,
              WrittenOut(prompt_of(i), all[i].params, all[i].constrained).output())
        << all[i].name;
  }
}

// A constraint that goes wrong after some tokens.
class Failing final : public TokenConstraint {
 public:
  enum class How : uint8_t { kFillThrows, kFillAllowsNone, kAcceptThrows, kLeavesBannedOnes };
  explicit Failing(How how) : how_(how) {}

  void fill(std::span<uint32_t> bits) override {
    const bool fails = num_accepted_ == 3;
    if (fails && how_ == How::kFillThrows) throw std::runtime_error("the grammar is lost");
    std::ranges::fill(bits, fails && how_ == How::kFillAllowsNone ? 0 : ~0u);
    // Bits behind the vocabulary are no tokens.
    if (fails && how_ == How::kFillAllowsNone) bits[kVocab / 32] = ~0u << kVocab % 32;
    if (fails && how_ == How::kLeavesBannedOnes) bits[0] = 1u << kEos, bits[1] = bits[2] = 0;
  }
  void accept(int32_t /*id*/) override {
    if (++num_accepted_ == 3 && how_ == How::kAcceptThrows) throw std::runtime_error("no such token");
  }

 private:
  How how_;
  int32_t num_accepted_ = 0;
};

TEST_P(ChangedLogits, AConstraintThatFailsEndsItsRequestAlone) {
  const struct {
    Failing::How how;
    size_t num_tokens;
    ErrorCode code;
    std::string sentence;
  } kWays[] = {
      {Failing::How::kFillThrows, 3, ErrorCode::kInternal, "the grammar is lost"},
      {Failing::How::kFillAllowsNone, 3, ErrorCode::kInvalidArgument,
       "request 2: its constraint allows no token at position 27"},
      {Failing::How::kAcceptThrows, 2, ErrorCode::kInternal, "no such token"},
      {Failing::How::kLeavesBannedOnes, 3, ErrorCode::kInvalidArgument,
       "request 2: no token may be chosen at position 27: its biases, bans and constraint leave none"},
  };
  const Case plain = cases().front();
  for (const auto& [how, num_tokens, code, sentence] : kWays) {
    SCOPED_TRACE(sentence);
    Engine engine(model_, config_of(GetParam()));
    SamplingParams params = plain.params;
    params.end_of_text = EndOfText::kBanned;
    add(engine, plain, 0);
    engine.add({.prompt = prompt_of(1), .params = params, .constraint = std::make_shared<Failing>(how)});
    add(engine, plain, 2);
    const Answers answers = answers_of(engine);
    ASSERT_TRUE(answers.at(2).error);
    EXPECT_EQ(answers.at(2).error->code(), code);
    EXPECT_EQ(answers.at(2).error->what(), sentence);
    EXPECT_EQ(answers.at(2).ids.size(), num_tokens);
    for (const int64_t id : {1, 3}) {
      const auto request = static_cast<size_t>(id - 1);
      EXPECT_EQ(answers.at(id).ids, WrittenOut(prompt_of(request), plain.params, Constrained::kNo).output());
    }
    EXPECT_EQ(engine.scheduler().free_pages(), 256);
  }
}

TEST_P(ChangedLogits, AConstraintIsToldEachTokenOnceAndInOrder) {
  Engine engine(model_, config_of(GetParam()));
  const auto constraint = std::make_shared<ByTurns>();
  engine.add(
      {.prompt = prompt_of(0), .params = likely({.end_of_text = EndOfText::kIgnored}), .constraint = constraint});
  size_t most_in_flight = 0;
  Answers answers;
  while (!engine.idle()) {
    take(engine.step(), answers);
    most_in_flight = std::max(most_in_flight, engine.runner().num_in_flight());
  }
  EXPECT_EQ(constraint->accepted, answers.at(1).ids);
  EXPECT_EQ(most_in_flight, GetParam() == StepsAhead::kAlways ? 1u : 0u);
}

// Counts what comes to the host but for the tokens, which a device writes to memory that both share.
class CountingRuntime final : public testing_support::HostMemory {
 public:
  void copy_to_host(void* to, const void* from, size_t bytes) override {
    bytes_to_host += bytes;
    HostMemory::copy_to_host(to, from, bytes);
  }
  size_t bytes_to_host = 0;
};

TEST_P(ChangedLogits, BringNoLogitsToTheHost) {
  CountingRuntime runtime;
  Engine engine(model_, config_of(GetParam(), runtime));
  const std::vector<Case> all = cases();
  for (size_t i = 0; i < all.size(); ++i) add(engine, all[i], i);
  answers_of(engine);
  EXPECT_EQ(runtime.bytes_to_host, 0u);
}

INSTANTIATE_TEST_SUITE_P(StepsAhead, ChangedLogits, testing::Values(StepsAhead::kNever, StepsAhead::kAlways),
                         [](const auto& ahead) { return ahead.param == StepsAhead::kNever ? "never" : "always"; });

TEST(LogitChangesOfRequests, AreRefusedWhereTheirTokensAreNone) {
  const HashedLogits model;
  EngineConfig config = config_of(StepsAhead::kNever);
  config.vocab = 60;  // the tokenizer's
  Engine engine(model, config);
  const auto refusal = [&](const SamplingParams& params) {
    return testing_support::refusal_of([&] { engine.add({1}, params); }).sentence;
  };
  EXPECT_EQ(refusal({.logit_bias = {{70, 1}}}), "logit_bias: 70 is outside the model's vocabulary of 70");
  EXPECT_EQ(refusal({.logit_bias = {{60, 1}}}), "logit_bias: 60 is never chosen: the tokenizer has ids below 60");
  EXPECT_EQ(refusal({.logit_bias = {{59, 1}}}), "");
}

// Every position wants the same tokens, in the order of their ids, and the mask most of all.
class Insistent final : public Model {
 public:
  static constexpr int32_t kMask = 30, kIds = 32;

  explicit Insistent(DiffusionInfo::Attention attention = DiffusionInfo::Attention::kBlockCausal) {
    info_ = {.architecture = "insistent",
             .vocab_size = kIds,
             .context_length = 256,
             .num_layers = 1,
             .eos_ids = {0},
             .kv_groups = {{{1, 4, 4}, {0}}},
             .full_attn_layer_ids = {0},
             .dtype = DType::kF32};
    info_.diffusion = DiffusionInfo{
        .mask_token_id = kMask, .block_size = 4, .sub_block_size = 4, .attention = attention, .threshold = 0.9f};
  }
  const ModelInfo& info() const override { return info_; }
  static float logit(int32_t id) { return 3 - 0.11f * static_cast<float>(id); }
  Tensor forward(const ForwardBatch& batch) const override {
    Tensor logits(DType::kF32, {std::ssize(batch.logits_rows), kIds});
    for (int64_t i = 0; i < logits.view().numel(); ++i) {
      const auto id = static_cast<int32_t>(i % kIds);
      logits.data_as<float>()[i] = id == kMask ? 9 : logit(id);
    }
    return logits;
  }

 private:
  ModelInfo info_;
};

// One token a pass, from the left: masks do not count, and what other positions have does.
TEST(LogitChangesOfDiffusion, CountWhatIsDecided) {
  using Attention = DiffusionInfo::Attention;
  for (const auto& [strategy, attention] :
       {std::pair("multi_bd", Attention::kBlockCausal), std::pair("full_attention", Attention::kFull)}) {
    SCOPED_TRACE(strategy);
    const Insistent model(attention);
    EngineConfig config = config_of(StepsAhead::kNever);
    config.strategy = strategy;
    Engine engine(model, config);
    SamplingParams params{.max_tokens = 24,
                          .min_tokens = 7,
                          .temperature = 0,
                          .presence_penalty = 0.4f,
                          .frequency_penalty = 0.25f,
                          .logit_bias = {{3, 1.5f}, {1, -kInfinity}}};
    params.decoding.rule = DecodingParams::Rule::kLeftmost;
    engine.add({9, 9, 9, 9, 9, 9, 9, 9}, params);
    const Answers answers = answers_of(engine);
    Ids want;
    while (want.size() < 24 && (want.empty() || want.back() != 0)) {
      const auto changed = [&want](int32_t id) {
        const auto count = static_cast<double>(std::ranges::count(want, id));
        const bool banned = id == Insistent::kMask || id == 1 || (id == 0 && want.size() < 7);
        return banned ? -std::numeric_limits<double>::infinity()
                      : static_cast<double>(Insistent::logit(id)) + (id == 3 ? 1.5 : 0) - 0.25 * count -
                            (count > 0 ? 0.4 : 0);
      };
      int32_t best = 0;
      for (int32_t id = 1; id < Insistent::kIds; ++id) best = changed(id) > changed(best) ? id : best;
      want.push_back(best);
    }
    EXPECT_EQ(answers.at(1).ids, want);
    EXPECT_GE(want.size(), 8u);
  }
}

TEST(LogitChangesOfDiffusion, RefuseByNameWhatNeedsOneTokenAtATime) {
  const Insistent model;
  EngineConfig config = config_of(StepsAhead::kNever);
  config.strategy = "multi_bd";
  Engine engine(model, config);
  const auto refusal = [&](EngineRequest request) {
    request.prompt = {9};
    return testing_support::refusal_of([&] { engine.add(std::move(request)); }).sentence;
  };
  EXPECT_EQ(refusal({.params = {.top_logprobs = 3}}),
            "top_logprobs is 3, expected 0 with the strategy 'multi_bd', which decides several tokens in a pass");
  EXPECT_EQ(refusal({.params = {.prompt_logprobs = 0}}),
            "prompt_logprobs is 0, expected none with the strategy 'multi_bd', whose prompts do not predict the next "
            "token");
  EXPECT_EQ(refusal({.constraint = std::make_shared<ByTurns>()}),
            "a constraint of the output is not possible with the strategy 'multi_bd', which decides several tokens in "
            "a pass");
  EXPECT_EQ(refusal({}), "");
}

}  // namespace
}  // namespace headrace
